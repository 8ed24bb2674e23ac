//! Why STS could not be asked.

use std::error::Error;

use hyper::StatusCode;
use node_attestation_core::refusal::{Deferral, Refusal, Unavailable};

/// STS did not say who called. Nothing here repeats what was sent, or an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Outage {
    /// It took too long.
    #[error("STS does not answer in time")]
    TimedOut,
    /// There is no connection, or it was cut.
    #[error("STS cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// The answer was cut.
    #[error("the answer of STS was cut")]
    Cut(#[source] reqwest::Error),
    /// The answer is larger than any of STS.
    #[error("the answer of STS is too large")]
    TooLarge,
    /// A status that says nothing about the evidence.
    #[error("STS answers with status {}", .0.as_u16())]
    Status(StatusCode),
    /// An error that says nothing about the evidence.
    #[error("STS answers with status {} and {}", .0.as_u16(), .1)]
    Code(StatusCode, String),
    /// Not an answer of STS.
    #[error("what answers with status {} is not STS", .0.as_u16())]
    Undecodable(StatusCode),
    /// More was confirmed than can be remembered.
    #[error("too many signatures were confirmed within minutes")]
    MemoryFull,
    /// The request could not be put together.
    #[error("the request to STS cannot be made")]
    Unbuildable(#[source] Box<dyn Error + Send + Sync>),
}

impl Outage {
    pub(super) fn unreachable(source: reqwest::Error) -> Self {
        if source.is_timeout() {
            Self::TimedOut
        } else {
            Self::Unreachable(source)
        }
    }

    pub(super) fn unbuildable(source: impl Error + Send + Sync + 'static) -> Self {
        Self::Unbuildable(Box::new(source))
    }
}

impl From<Outage> for Refusal {
    fn from(outage: Outage) -> Self {
        Deferral::VerifierUnavailable(Unavailable::new(outage)).into()
    }
}
