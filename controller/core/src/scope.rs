//! Whether attestation is enforced in a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether attestation is enforced in a cluster. By default, it is. All clones share the value.
///
/// While attestation is not enforced, nodes without a node identity work as before: the controller ignores their
/// requests to the built-in signers of Kubernetes.
#[derive(Debug, Clone)]
pub struct Enforcement(Arc<AtomicBool>);

impl Default for Enforcement {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Enforcement {
    /// Creates the value.
    pub fn new(is_on: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_on)))
    }

    /// Whether attestation is enforced.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value, which applies from the next request on.
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}
