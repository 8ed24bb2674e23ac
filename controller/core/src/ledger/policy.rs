//! The operator's policy on records.

use std::time::Duration;

pub use crate::crd::{Adoption, NameReuse, Reenrolment, StaleNodes};

/// The ledger's policy of one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerPolicy {
    /// The condition under which a machine may have another key.
    pub reenrolment: Reenrolment,
    /// Whether Nodes that joined before us are taken on.
    pub adoption: Adoption,
    /// The time at which another machine may have a name.
    pub name_reuse: NameReuse,
    /// The treatment of a Node that exists already.
    pub stale_nodes: StaleNodes,
    /// The longest lifetime that a certificate is granted. A record knows of a longer one by which it
    /// was opened.
    pub longest_lifetime: Duration,
}

impl LedgerPolicy {
    /// The usual policy, where no certificate lives longer than this.
    pub fn new(longest_lifetime: Duration) -> Self {
        Self {
            reenrolment: Reenrolment::WhenNodeDown,
            adoption: Adoption::Refuse,
            name_reuse: NameReuse::Allow,
            stale_nodes: StaleNodes::Delete,
            longest_lifetime,
        }
    }
}
