//! The operator's policy for records.

use std::time::Duration;

pub use crate::crd::Adoption;

/// The policy of one cluster's ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerPolicy {
    /// Whether Nodes that joined before this controller can be adopted.
    pub adoption: Adoption,
    /// The longest validity of a certificate. A record can have been opened with a longer validity, which it stores.
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
