//! The outcomes of a request other than a certificate: four outcomes, four types.
//!
//! | type | meaning | on the request |
//! | --- | --- | --- |
//! | [`Denial`] | a contradiction: somebody lies, or is misconfigured | condition `Denied` |
//! | [`Failure`] | nobody's fault, but this request can never be issued | condition `Failed` |
//! | [`Deferral`] | an outage, or not yet | stays pending |
//! | [`Ignored`] | not ours | nothing |
//!
//! A time-out is never a denial. `reason` is stable, for the condition, the event and the log;
//! `message` is for the condition, which every requester can read, so it says nothing about other
//! machines; `Display` has the details, for the log and the event.

mod catalogue;
mod deferral;
mod denial;
mod evidence_denial;
mod failure;
mod ignored;

pub use catalogue::Reason;
pub use deferral::{Deferral, NotAsked, Unavailable};
pub use denial::Denial;
pub use evidence_denial::{EvidenceDenial, EvidenceReason};
pub use failure::Failure;
pub use ignored::Ignored;

/// Why a request of ours gets no certificate, or not yet.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Deny it.
    #[error(transparent)]
    Deny(#[from] Denial),
    /// Fail it; the node may file a new one at once.
    #[error(transparent)]
    Fail(#[from] Failure),
    /// Leave it pending and try again later.
    #[error(transparent)]
    Retry(#[from] Deferral),
}
