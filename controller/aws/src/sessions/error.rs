//! Errors of credentials. None of them is a reason to deny a node.

use std::sync::Arc;

use crate::error_codes::Meaning;

/// The credentials of a plan are not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {kind}")]
pub struct CredentialsError {
    /// The failing step: the ARN of a role, or the source of the first credentials.
    pub step: Arc<str>,
    /// The kind of the failure.
    pub kind: FailureKind,
}

/// The failure of a step.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum FailureKind {
    /// AWS refuses the call, because of a trust policy, an external ID, an IAM policy, or an invalid access key.
    #[display("AWS refuses with {code}{}{}", request(request_id.as_ref()), advice(code))]
    Refused {
        /// The AWS error code.
        code: String,
        /// The request ID, for AWS `CloudTrail`.
        request_id: Option<String>,
    },
    /// AWS does not allow an additional action that the call needs.
    #[display("AWS refuses {action}, which the call also requires{}", request(request_id.as_ref()))]
    ActionDenied {
        /// The action, such as `sts:TagSession`.
        action: String,
        /// The request ID, for AWS `CloudTrail`.
        request_id: Option<String>,
    },
    /// STS throttles the calls; with its code.
    #[display("throttled by STS: {_0}")]
    Throttled(String),
    /// STS did not answer, or its answer cannot be parsed.
    #[display("cannot call STS: {_0}")]
    Unavailable(String),
    /// The credentials were already expired when STS returned them.
    #[display("STS returned expired credentials")]
    Expired,
    /// The controller does not have its own credentials.
    #[display("the controller has no AWS credentials: {_0}")]
    NoneOfOurOwn(String),
    /// The API server did not issue a token for the service account.
    #[display("the API server returned no token: {_0}")]
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

    /// Whether only a change by an administrator can lead to a different answer. Such a call is repeated rarely.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::ActionDenied { .. })
    }

    /// Whether this failure can be limited to the STS in one region, such as a region that the account has not enabled.
    /// AWS returns the same code for an invalid access key.
    pub(super) fn may_be_of_region(&self) -> bool {
        const CODES: [&str; 2] = ["InvalidClientTokenId", "RegionDisabledException"];
        matches!(self, Self::Refused { code, .. } if CODES.contains(&&**code))
    }

    /// Whether AWS refused the session of the call, so that AWS can still accept another session.
    pub(super) fn is_of_session(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if Meaning::of(code) == Meaning::Session)
    }
}

fn request(id: Option<&String>) -> String {
    id.map_or_else(String::new, |id| format!(" (request {id})"))
}

/// The cause, for a code that does not contain its cause.
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
