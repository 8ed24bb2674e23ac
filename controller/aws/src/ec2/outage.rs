//! Why EC2 could not be asked. None of it says anything about a node.

use std::fmt;

use node_attestation_core::refusal::Unavailable;

/// Why EC2 could not be asked in a region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Outage {
    /// The region.
    pub region: String,
    /// Its kind.
    pub kind: OutageKind,
}

/// Why EC2 could not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutageKind {
    /// No answer in time.
    TimedOut,
    /// EC2 could not be reached, or its answer not be read: what was wrong.
    Unreachable(&'static str),
    /// EC2 is asked too often: EC2's code.
    Throttled(String),
    /// There are no credentials, or EC2 does not accept them: EC2's code, or what is missing.
    Credentials(String),
    /// The credentials may not call this action, as a policy of IAM has it: EC2's code.
    NotAllowed(&'static str, String),
    /// Another error of EC2: its code.
    Failed(String),
    /// EC2 answers with more than a cluster has.
    TooMuch,
    /// Too many requests wait for EC2.
    Busy,
    /// EC2 does not know the instance: it is of another account, or too young.
    NotFound(String),
    /// The instance is too young for a name, or its subnet gives no such names.
    Unnamed(String),
    /// EC2's answer has no endorsement key of this instance: what is wrong with the answer.
    NoKey(String, &'static str),
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use OutageKind as Kind;
        let ec2 = format_args!("EC2 in {}", self.region);
        let region = &self.region;
        match &self.kind {
            Kind::TimedOut => write!(f, "{ec2} did not answer in time"),
            Kind::Unreachable(what) => write!(f, "{ec2} could not be asked: {what}"),
            Kind::Throttled(code) => write!(f, "{ec2} is asked too often: {code}"),
            Kind::Credentials(code) => {
                let what = "the controller's AWS credentials cannot be used";
                write!(f, "{what} in {region}: {code}")
            }
            Kind::NotAllowed(action, code) => {
                write!(
                    f,
                    "the controller may not call {action} in {region}: {code}"
                )
            }
            Kind::Failed(code) => write!(f, "{ec2} answers with an error: {code}"),
            Kind::TooMuch => write!(f, "{ec2} answers with more instances than are read"),
            Kind::Busy => write!(f, "too many requests wait for {ec2}"),
            Kind::NotFound(instance) => {
                write!(f, "{ec2} does not know the instance {instance}, or not yet")
            }
            Kind::Unnamed(instance) => {
                let what = "that a Node could have, or not yet";
                write!(f, "{ec2} tells no name of the instance {instance} {what}")
            }
            Kind::NoKey(instance, detail) => {
                write!(
                    f,
                    "{ec2} answers with no endorsement key of {instance}: {detail}"
                )
            }
        }
    }
}

impl OutageKind {
    /// The outage of EC2 in this region.
    pub(super) fn at(self, region: &str) -> Unavailable {
        Unavailable::new(Outage {
            region: region.to_owned(),
            kind: self,
        })
    }

    /// Whether it says something of the credentials.
    pub(crate) fn is_of_credentials(&self) -> bool {
        matches!(self, Self::Credentials(_) | Self::NotAllowed(..))
    }

    /// The meaning of an error code of EC2 after a call of this action.
    ///
    /// The codes are those of "Error codes for the Amazon EC2 API" that a call without parameters
    /// of a caller's own can give.
    pub(super) fn of_code(action: &'static str, code: &str) -> Self {
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
            | "BandwidthLimitExceeded" => Self::Throttled(kept),
            "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" => {
                Self::NotAllowed(action, kept)
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
            | "UnrecognizedClientException" => Self::Credentials(kept),
            _ => Self::Failed(kept),
        }
    }
}
