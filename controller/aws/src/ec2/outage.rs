//! Why EC2 could not be asked. None of it says anything about a node.

use node_attestation_core::refusal::Unavailable;

use crate::error_codes::{Meaning, bounded};

/// Why EC2 could not be asked in a region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("EC2 in {region} {kind}")]
pub struct Outage {
    /// The region.
    pub region: String,
    /// Its kind.
    pub kind: OutageKind,
}

/// Why EC2 could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum OutageKind {
    /// No answer in time.
    #[display("did not answer in time")]
    TimedOut,
    /// EC2 could not be reached, or its answer not be read: what was wrong.
    #[display("could not be asked: {_0}")]
    Unreachable(&'static str),
    /// EC2 is asked too often: EC2's code.
    #[display("is asked too often: {_0}")]
    Throttled(String),
    /// There are no credentials, or EC2 does not accept them: EC2's code, or what is missing.
    #[display("cannot be asked with the cluster's AWS credentials: {_0}")]
    Credentials(String),
    /// The credentials may not call this action, as a policy of IAM has it: EC2's code.
    #[display("does not let the controller call {_0}: {_1}")]
    NotAllowed(&'static str, String),
    /// Another error of EC2: its code.
    #[display("answers with an error: {_0}")]
    Failed(String),
    /// EC2 answers with more than a cluster has.
    #[display("answers with more instances than are read")]
    TooMuch,
    /// Too many requests wait for EC2.
    #[display("is not asked now: too many requests wait for it")]
    Busy,
    /// EC2 does not know the instance: it is of another account, or too young.
    #[display("does not know the instance {_0}, or not yet")]
    NotFound(String),
    /// The instance is too young for a name, or its subnet gives no such names.
    #[display("tells no name of the instance {_0} that a Node could have, or not yet")]
    Unnamed(String),
    /// EC2's answer has no endorsement key of this instance: what is wrong with the answer.
    #[display("answers with no endorsement key of {_0}: {_1}")]
    NoKey(String, &'static str),
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

    /// Whether AWS refused the session of the credentials, so that another may be accepted.
    pub(super) fn is_of_session(&self) -> bool {
        matches!(self, Self::Credentials(code) if Meaning::of(code) == Meaning::Session)
    }

    /// The meaning of an error code of EC2 after a call of this action.
    pub(super) fn of_code(action: &'static str, code: &str) -> Self {
        let kept = bounded(code);
        match Meaning::of(code) {
            Meaning::Throttled => Self::Throttled(kept),
            Meaning::NotAllowed => Self::NotAllowed(action, kept),
            Meaning::Session | Meaning::Account => Self::Credentials(kept),
            Meaning::Other => Self::Failed(kept),
        }
    }
}
