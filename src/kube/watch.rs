//! Waiting for a decision.

use super::types::CsrObject;

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "whoever waits handles every end")]
pub enum Waited {
    /// The request was denied, failed or signed; its state is never `Pending`.
    Decided(CsrObject),
    /// The deadline has passed and nothing is decided: the request as last seen.
    Undecided(CsrObject),
    /// The request was deleted, or another of its name was made.
    Gone,
}
