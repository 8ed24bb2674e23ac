//! Why EC2 could not be asked. None of it says anything about a node.

use node_attestation_core::refusal::Unavailable;

/// Why EC2 could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Outage {
    /// No answer in time.
    #[error("EC2 in {region} did not answer in time")]
    TimedOut {
        /// The region.
        region: String,
    },
    /// EC2 could not be reached, or its answer not be read.
    #[error("EC2 in {region} could not be asked: {what}")]
    Unreachable {
        /// The region.
        region: String,
        /// What was wrong.
        what: &'static str,
    },
    /// EC2 is asked too often.
    #[error("EC2 in {region} is asked too often: {code}")]
    Throttled {
        /// The region.
        region: String,
        /// EC2's code.
        code: String,
    },
    /// There are no credentials, or EC2 does not accept them.
    #[error("the controller's AWS credentials cannot be used in {region}: {code}")]
    Credentials {
        /// The region.
        region: String,
        /// EC2's code, or what is missing.
        code: String,
    },
    /// The credentials may not do this.
    #[error("the controller may not call {action} in {region}: {code}")]
    NotAllowed {
        /// The action, as a policy of IAM has it.
        action: &'static str,
        /// The region.
        region: String,
        /// EC2's code.
        code: String,
    },
    /// Another error of EC2.
    #[error("EC2 in {region} answers with an error: {code}")]
    Failed {
        /// The region.
        region: String,
        /// EC2's code.
        code: String,
    },
    /// EC2 answers with more than a cluster has.
    #[error("EC2 in {region} answers with more instances than are read")]
    TooMuch {
        /// The region.
        region: String,
    },
    /// Too many requests wait for EC2.
    #[error("too many requests wait for EC2 in {region}")]
    Busy {
        /// The region.
        region: String,
    },
}

impl Outage {
    /// What an error code of EC2 means, where this action was asked for.
    ///
    /// The codes are those of "Error codes for the Amazon EC2 API" that a call without parameters
    /// of a caller's own can give.
    pub(super) fn of_code(region: &str, action: &'static str, code: &str) -> Self {
        let region = region.to_owned();
        // Of AWS, but neither bounded nor checked.
        let kept: String = code
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(64)
            .collect();
        match code {
            "RequestLimitExceeded"
            | "Throttling"
            | "ThrottlingException"
            | "RequestThrottled"
            | "RequestThrottledException"
            | "TooManyRequestsException"
            | "SlowDown"
            | "BandwidthLimitExceeded" => Self::Throttled { region, code: kept },
            "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" => {
                let code = kept;
                Self::NotAllowed {
                    action,
                    region,
                    code,
                }
            }
            "AuthFailure"
            | "Blocked"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "IncompleteSignature"
            | "InvalidClientTokenId"
            | "MissingAuthenticationToken"
            | "OptInRequired"
            | "PendingVerification"
            | "RequestExpired"
            | "SignatureDoesNotMatch"
            | "UnrecognizedClientException" => Self::Credentials { region, code: kept },
            _ => Self::Failed { region, code: kept },
        }
    }
}

impl From<Outage> for Unavailable {
    fn from(outage: Outage) -> Self {
        Self::new(outage)
    }
}
