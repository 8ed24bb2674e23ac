//! Calls of EC2, and what goes wrong with them.

use std::time::Duration;

/// A call of EC2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its action.
    pub action: String,
    /// The account of its access key; empty for a key that is none of [`super::access_key`].
    pub account: String,
    /// The region that it was signed for.
    pub region: String,
    /// The service that it was signed for.
    pub service: String,
    /// Its parameters, action and version included.
    pub parameters: Vec<(String, String)>,
}

impl Call {
    /// The values of the parameters whose name begins so, in their order.
    pub fn values(&self, prefix: &str) -> Vec<&str> {
        let values = self.parameters.iter();
        values
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, value)| &**value)
            .collect()
    }
}

/// Which calls something applies to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    account: Option<String>,
    region: Option<String>,
    action: Option<String>,
}

impl Scope {
    /// Every call.
    pub fn any() -> Self {
        Self::default()
    }

    /// The calls in a region.
    pub fn region(region: &str) -> Self {
        Self {
            region: Some(region.to_owned()),
            ..Self::default()
        }
    }

    /// The calls with an account's access key.
    pub fn account(account: &str) -> Self {
        Self {
            account: Some(account.to_owned()),
            ..Self::default()
        }
    }

    /// Those of them that are of one action.
    pub fn and_action(self, action: &str) -> Self {
        Self {
            action: Some(action.to_owned()),
            ..self
        }
    }

    pub(super) fn matches(&self, call: &Call) -> bool {
        let same =
            |wanted: &Option<String>, found| wanted.as_ref().is_none_or(|wanted| wanted == found);
        same(&self.account, &call.account)
            && same(&self.region, &call.region)
            && same(&self.action, &call.action)
    }
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// EC2 answers an error of its own.
    Error {
        /// The HTTP status.
        status: u16,
        /// EC2's code.
        code: &'static str,
    },
    /// Another server's answer, 200.
    Body(String),
    /// No answer.
    Hang,
    /// The answer comes late.
    Delay(Duration),
    /// The connection is cut.
    Cut,
}

impl Failure {
    /// EC2 is asked too often.
    pub fn throttled() -> Self {
        Self::Error {
            status: 503,
            code: "RequestLimitExceeded",
        }
    }

    /// EC2 is out of order.
    pub fn out_of_order() -> Self {
        Self::Error {
            status: 503,
            code: "Unavailable",
        }
    }

    /// The credentials are not allowed to.
    pub fn unauthorized() -> Self {
        Self::Error {
            status: 403,
            code: "UnauthorizedOperation",
        }
    }

    /// The credentials are none of AWS's.
    pub fn bad_credentials() -> Self {
        Self::Error {
            status: 401,
            code: "AuthFailure",
        }
    }

    /// The credentials have expired.
    pub fn expired_credentials() -> Self {
        Self::Error {
            status: 400,
            code: "RequestExpired",
        }
    }
}
