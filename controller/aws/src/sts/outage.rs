//! The reasons why STS cannot be called.

use std::error::Error;

use hyper::StatusCode;
use node_attestation_core::refusal::{Deferral, Refusal, Unavailable};

/// The reason why STS did not identify the caller. These errors never contain parts of the request or of a response.
#[derive(Debug, thiserror::Error)]
pub(super) enum StsOutage {
    /// STS did not respond in time.
    #[error("STS did not respond in time")]
    TimedOut,
    /// The connection failed or was closed.
    #[error("cannot reach STS")]
    Unreachable(#[source] reqwest::Error),
    /// The answer was truncated.
    #[error("the response from STS is incomplete")]
    Cut(#[source] reqwest::Error),
    /// The answer is longer than any answer from STS.
    #[error("the response from STS is too large")]
    TooLarge,
    /// An HTTP status that is not a decision about the evidence.
    #[error("STS returned status {}", .0.as_u16())]
    Status(StatusCode),
    /// An error code that is not a decision about the evidence.
    #[error("STS returned status {} and {}", .0.as_u16(), .1)]
    Code(StatusCode, String),
    /// The answer is not from STS.
    #[error("the server that returned status {} is not STS", .0.as_u16())]
    Undecodable(StatusCode),
    /// More signatures were confirmed than the cache can store.
    #[error(
        "STS confirmed too many signatures in the last few minutes, so the controller cannot store another signature"
    )]
    MemoryFull,
    /// The request could not be built.
    #[error("cannot create the request to STS")]
    Unbuildable(#[source] Box<dyn Error + Send + Sync>),
}

impl StsOutage {
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

impl From<StsOutage> for Refusal {
    fn from(outage: StsOutage) -> Self {
        Deferral::VerifierUnavailable(Unavailable::new(outage)).into()
    }
}
