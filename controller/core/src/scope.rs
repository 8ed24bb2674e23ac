//! Whether attestation is enforced in a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether attestation is enforced: on, unless whoever looks after a cluster says otherwise. All
/// clones say the same.
///
/// While it is off, nodes that have no record go on as before: their requests to Kubernetes' own
/// signers are left alone.
#[derive(Debug, Clone)]
pub struct Enforcement(Arc<AtomicBool>);

impl Default for Enforcement {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Enforcement {
    /// On or off from the beginning.
    pub fn new(is_on: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_on)))
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Turns it on or off, from the next request on.
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}
