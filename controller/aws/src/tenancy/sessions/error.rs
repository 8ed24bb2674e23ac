//! Errors about credentials. None of them is a reason to deny a node.

use std::error::Error;
use std::sync::Arc;

use crate::error_codes::Meaning;

/// The reason why the credentials for a plan are not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {kind}")]
pub struct CredentialsError {
    /// The step that failed: the ARN of a role, or the source of the first credentials.
    pub step: Arc<str>,
    /// The kind of the failure.
    pub kind: FailureKind,
}

/// The reason why the API server did not issue a token for a service account.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The API server did not respond before the deadline.
    #[error("no response in time")]
    TimedOut,
    /// The API server rejected the call, or is unavailable.
    #[error(transparent)]
    Call(Box<dyn Error + Send + Sync>),
    /// The response does not contain a token.
    #[error("the response does not contain a token")]
    Missing,
}

/// The failure of a step.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum FailureKind {
    /// AWS rejects the call, because of a trust policy, an external ID, an IAM policy, or an invalid access key.
    #[display("AWS refuses the call with {code}{}{}", request(request_id.as_ref()), advice(code))]
    Refused {
        /// The AWS error code.
        code: String,
        /// The request ID, for AWS `CloudTrail`.
        request_id: Option<String>,
    },
    /// AWS does not allow another action that the call requires.
    #[display("AWS refuses {action}, which the call also requires{}", request(request_id.as_ref()))]
    ActionDenied {
        /// The action, such as `sts:TagSession`.
        action: String,
        /// The request ID, for AWS `CloudTrail`.
        request_id: Option<String>,
    },
    /// STS throttles the calls. Contains STS's code.
    #[display("throttled by STS: {_0}")]
    Throttled(String),
    /// STS did not respond, or its response cannot be parsed.
    #[display("cannot call STS: {_0}")]
    Unavailable(String),
    /// The credentials were already expired when STS returned them.
    #[display("STS returned expired credentials")]
    Expired,
    /// The controller itself does not have credentials.
    #[display("the controller has no AWS credentials: {_0}")]
    NoneOfOurOwn(String),
    /// The API server did not issue a token for the service account.
    #[display("the API server did not return a token: {_0}")]
    NoToken(String),
}

impl FailureKind {
    /// The reason for the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } | Self::ActionDenied { .. } => "AssumeRoleDenied",
            Self::Throttled(_) => "Throttled",
            Self::Unavailable(_) | Self::Expired => "STSUnavailable",
            Self::NoneOfOurOwn(_) => "CredentialsUnusable",
            Self::NoToken(_) => "ServiceAccountTokenUnavailable",
        }
    }

    /// Whether the response changes only after an administrator makes a change. The call is then repeated less often.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::ActionDenied { .. })
    }

    /// Whether this failure might be limited to the STS in one region, such as a region that the account has not
    /// enabled. AWS returns the same code for an invalid access key.
    pub(super) fn may_be_of_region(&self) -> bool {
        const CODES: [&str; 2] = ["InvalidClientTokenId", "RegionDisabledException"];
        matches!(self, Self::Refused { code, .. } if CODES.contains(&&**code))
    }

    /// Whether AWS rejected the session in the call. AWS might accept a different session.
    pub(super) fn is_of_session(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if Meaning::of(code) == Meaning::Session)
    }
}

fn request(id: Option<&String>) -> String {
    id.map_or_else(String::new, |id| format!(" (request {id})"))
}

/// Returns the cause of a failure whose code does not describe it.
fn advice(code: &str) -> &'static str {
    match code {
        "InvalidClientTokenId" => {
            ": the access key is not valid, or its account has not enabled the STS region (--aws-sts-region)"
        }
        "RegionDisabledException" => {
            ": the role's account has not activated STS in this region (--aws-sts-region)"
        }
        "PackedPolicyTooLarge" => {
            ": inlinePolicy, policyARNs and the session tags together are too large; EKS Pod Identity adds tags, \
             unless disableSessionTags is set in its association"
        }
        _ => "",
    }
}
