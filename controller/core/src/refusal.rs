//! The outcomes of a request other than a certificate. Each of the four outcomes has a separate type.
//!
//! | type | meaning | on the request |
//! | --- | --- | --- |
//! | [`Denial`] | a contradiction: an attack or a wrong configuration | condition `Denied` |
//! | [`Failure`] | no contradiction, but no certificate can ever be issued for this request | condition `Failed` |
//! | [`Deferral`] | an outage, or a condition that is not met yet | remains pending |
//! | [`Ignored`] | the controller does not decide on the request | none |
//!
//! A timeout is never a denial. `reason` is a stable name for the condition, the Event and the log. `message` is the
//! text of the condition. Every requester can read it, so it does not contain data about other machines. `Display`
//! contains the details for the log and the Event.

mod catalogue;
mod deferral;
mod denial;
mod evidence_denial;
mod failure;
mod ignored;

pub use catalogue::Reason;
pub use deferral::{Deferral, NotCalled, Unavailable, WaitEnd};
pub use denial::Denial;
pub use evidence_denial::{EvidenceDenial, EvidenceReason};
pub use failure::Failure;
pub use ignored::Ignored;

/// The reason why a request to this controller does not get a certificate, or does not get it yet.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Deny the request.
    #[error(transparent)]
    Deny(#[from] Denial),
    /// Fail the request. The node can send a new request immediately.
    #[error(transparent)]
    Fail(#[from] Failure),
    /// Leave the request pending, and retry later.
    #[error(transparent)]
    Retry(#[from] Deferral),
}

impl<D: EvidenceReason> From<D> for Refusal {
    fn from(reason: D) -> Self {
        Self::Deny(reason.into())
    }
}
