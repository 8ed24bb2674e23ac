//! The policy for records, which an operator configures.

use std::time::Duration;

pub use crate::crd::Adoption;

/// The policy of one cluster's ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerPolicy {
    /// Whether Nodes that joined before this controller served the cluster can be adopted.
    pub adoption: Adoption,
    /// The maximum validity of a certificate. If a record was opened with a longer validity, the record stores that
    /// validity.
    pub longest_lifetime: Duration,
}

impl LedgerPolicy {
    /// Creates the policy with this maximum validity and without adoption.
    pub fn new(longest_lifetime: Duration) -> Self {
        Self {
            adoption: Adoption::Refuse,
            longest_lifetime,
        }
    }
}
