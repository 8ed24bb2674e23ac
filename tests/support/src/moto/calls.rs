//! Calls to EC2, and their failures.

use std::time::Duration;

/// A call to EC2, or to another service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The action of the call.
    pub action: String,
    /// The account in the access key of the call. Empty if the key is not from [`super::access_key`].
    pub account: String,
    /// The region for which the call was signed.
    pub region: String,
    /// The service for which the call was signed.
    pub service: String,
    /// The `User-Agent` header of the call.
    pub user_agent: String,
    /// The parameters of the call, including action and version. A JSON call has no parameters here.
    pub parameters: Vec<(String, String)>,
}

impl Call {
    /// The values of the parameters whose names begin with `prefix`, in their original order.
    pub fn values(&self, prefix: &str) -> Vec<&str> {
        let values = self.parameters.iter();
        values
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, value)| &**value)
            .collect()
    }
}

/// The calls to which a failure applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    account: Option<String>,
    region: Option<String>,
    action: Option<String>,
}

impl Scope {
    /// Matches every call.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches the calls in this region.
    pub fn region(region: &str) -> Self {
        Self {
            region: Some(region.to_owned()),
            ..Self::default()
        }
    }

    /// Matches the calls with this account's access key.
    pub fn account(account: &str) -> Self {
        Self {
            account: Some(account.to_owned()),
            ..Self::default()
        }
    }

    /// Restricts the scope to calls with one action.
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

/// A failure of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// EC2 returns an error.
    Error {
        /// The HTTP status.
        status: u16,
        /// EC2's code.
        code: &'static str,
    },
    /// The response has status 200 and this body, as if from a different server.
    Body(String),
    /// The call is never answered.
    Hang,
    /// The response is delayed by this time.
    Delay(Duration),
    /// The connection is closed without a response.
    Cut,
}

impl Failure {
    /// The error for too many calls.
    pub fn throttled() -> Self {
        Self::Error {
            status: 503,
            code: "RequestLimitExceeded",
        }
    }

    /// The error that EC2 returns while it is unavailable.
    pub fn out_of_order() -> Self {
        Self::Error {
            status: 503,
            code: "Unavailable",
        }
    }

    /// The error for credentials without permission for the call.
    pub fn unauthorized() -> Self {
        Self::Error {
            status: 403,
            code: "UnauthorizedOperation",
        }
    }

    /// The error for credentials that AWS does not recognize.
    pub fn bad_credentials() -> Self {
        Self::Error {
            status: 401,
            code: "AuthFailure",
        }
    }

    /// The error for expired credentials.
    pub fn expired_credentials() -> Self {
        Self::Error {
            status: 400,
            code: "RequestExpired",
        }
    }
}
