//! Errors of credentials. None of it says anything about a node.

use std::sync::Arc;

use crate::error_codes::Meaning;

/// The credentials of a plan are not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {kind}")]
pub struct CredentialsError {
    /// The failing step: the ARN of a role, or what the credentials begin with.
    pub step: Arc<str>,
    /// Its failure.
    pub kind: FailureKind,
}

/// The failure of a step.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum FailureKind {
    /// AWS refuses: a trust policy, an external ID, a policy, or an access key that is not valid.
    #[display("AWS refuses with {code}{}{}", request(request_id.as_ref()), advice(code))]
    Refused {
        /// The code of AWS.
        code: String,
        /// The ID of the request, for the log of AWS `CloudTrail`.
        request_id: Option<String>,
    },
    /// AWS does not allow another action than the one that was called, which the call needs too.
    #[display("AWS refuses {action}, which the call needs too{}", request(request_id.as_ref()))]
    ActionDenied {
        /// The action, such as `sts:TagSession`.
        action: String,
        /// The ID of the request, for the log of AWS `CloudTrail`.
        request_id: Option<String>,
    },
    /// STS is asked too often: its code.
    #[display("STS is asked too often: {_0}")]
    Throttled(String),
    /// STS did not answer, or not in a way that can be read.
    #[display("STS could not be asked: {_0}")]
    Unavailable(String),
    /// The credentials had expired when they came.
    #[display("STS answered with credentials that have expired")]
    Expired,
    /// The controller has no credentials of its own.
    #[display("the controller has no AWS credentials: {_0}")]
    NoneOfOurOwn(String),
    /// The API server gave no token of the service account.
    #[display("the API server gave no token: {_0}")]
    NoToken(String),
}

impl FailureKind {
    /// The reason in a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } | Self::ActionDenied { .. } => "AssumeRoleDenied",
            Self::Throttled(_) => "Throttled",
            Self::Unavailable(_) | Self::Expired => "STSUnavailable",
            Self::NoneOfOurOwn(_) => "CredentialsUnusable",
            Self::NoToken(_) => "ServiceAccountTokenUnavailable",
        }
    }

    /// Whether another answer needs a change of somebody's, so that it is asked for rarely.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::ActionDenied { .. })
    }

    /// Whether STS of this region does not serve the account of the credentials, as in a region that the account has not
    /// enabled. AWS has the same words for an access key that is not valid.
    pub(super) fn may_be_of_region(&self) -> bool {
        const CODES: [&str; 2] = ["InvalidClientTokenId", "RegionDisabledException"];
        matches!(self, Self::Refused { code, .. } if CODES.contains(&&**code))
    }

    /// Whether AWS refused the session of the call, so that another may be accepted.
    pub(super) fn is_of_session(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if Meaning::of(code) == Meaning::Session)
    }
}

fn request(id: Option<&String>) -> String {
    id.map_or_else(String::new, |id| format!(" (request {id})"))
}

/// The cause of a code that does not tell it.
fn advice(code: &str) -> &'static str {
    match code {
        "InvalidClientTokenId" => {
            ": the access key is not valid, or its account has not enabled the region of STS (--aws-sts-region)"
        }
        "RegionDisabledException" => {
            ": the account of the role has not activated STS in this region (--aws-sts-region)"
        }
        "PackedPolicyTooLarge" => {
            ": inlinePolicy, policyARNs and the tags of the session are too large together; EKS Pod Identity adds tags, \
             unless its association has disableSessionTags"
        }
        _ => "",
    }
}
