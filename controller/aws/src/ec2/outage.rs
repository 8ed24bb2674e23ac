//! The reasons why EC2 cannot be called. None of them is a reason to deny a node.

use node_attestation_core::refusal::Unavailable;

use crate::error_codes::{Meaning, bounded};

/// An EC2 call that failed in one region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("EC2 in {region} {kind}")]
pub struct Outage {
    /// The region.
    pub region: String,
    /// The kind of the failure.
    pub kind: OutageKind,
}

/// The reason why an EC2 call failed.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum OutageKind {
    /// EC2 did not respond in time.
    #[display("did not respond in time")]
    TimedOut,
    /// The call failed before EC2 responded. Contains the error.
    #[display("cannot be reached: {_0}")]
    Unreachable(&'static str),
    /// EC2's response cannot be parsed. Contains the error.
    #[display("returned an invalid response: {_0}")]
    InvalidResponse(&'static str),
    /// EC2 throttles the calls. Contains EC2's code.
    #[display("throttles the controller: {_0}")]
    Throttled(String),
    /// The credentials are missing or rejected. Contains EC2's code, or the missing part.
    #[display("cannot be called with the cluster's AWS credentials: {_0}")]
    Credentials(String),
    /// An IAM policy does not allow the credentials to call this action. Contains EC2's code.
    #[display("does not allow the controller to call {_0}: {_1}")]
    NotAllowed(&'static str, String),
    /// Another EC2 error. Contains EC2's code.
    #[display("returned an error: {_0}")]
    Failed(String),
    /// EC2 returned more instances than a cluster can have.
    #[display("returned more instances than the controller reads")]
    TooMuch,
    /// Too many requests wait for EC2.
    #[display("is not called now: too many requests are waiting for it")]
    Busy,
    /// The namespace uses too many combinations of credentials and regions.
    #[display(
        "is not called now: the namespace uses too many combinations of credentials and regions"
    )]
    TooManyRegions,
    /// EC2 does not list the instance: it belongs to another account, or is too young.
    #[display("does not (yet) report the instance {_0}")]
    NotFound(String),
    /// The instance is too young to have a name, or its subnet does not assign such names.
    #[display("does not (yet) report a valid node name for the instance {_0}")]
    Unnamed(String),
    /// EC2's response has no valid endorsement key for this instance. Contains the error in the response.
    #[display("returned an invalid endorsement key for {_0}: {_1}")]
    NoKey(String, &'static str),
}

impl OutageKind {
    /// Creates the error for this outage in this region.
    pub(super) fn at(self, region: &str) -> Unavailable {
        Unavailable::new(Outage {
            region: region.to_owned(),
            kind: self,
        })
    }

    /// Whether the credentials cause the outage.
    pub(crate) fn is_of_credentials(&self) -> bool {
        matches!(self, Self::Credentials(_) | Self::NotAllowed(..))
    }

    /// Whether AWS rejected the session of the credentials. A different session could be accepted.
    pub(super) fn is_of_session(&self) -> bool {
        matches!(self, Self::Credentials(code) if Meaning::of(code) == Meaning::Session)
    }

    /// The meaning of an EC2 error code in the response to this action.
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
