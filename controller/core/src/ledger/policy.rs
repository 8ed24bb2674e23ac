//! The operator's policy on records.

use std::time::Duration;

pub use crate::crd::Adoption;

/// The ledger's policy of one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerPolicy {
    /// Whether Nodes that joined before us are taken on.
    pub adoption: Adoption,
    /// The longest lifetime that a certificate is granted. A record knows of a longer one by which it
    /// was opened.
    pub longest_lifetime: Duration,
}

impl LedgerPolicy {
    /// The usual policy, where no certificate lives longer than this.
    pub fn new(longest_lifetime: Duration) -> Self {
        Self {
            adoption: Adoption::Refuse,
            longest_lifetime,
        }
    }
}
