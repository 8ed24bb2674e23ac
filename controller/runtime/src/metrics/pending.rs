//! The unanswered requests of a queue.

use std::collections::BTreeSet;
use std::sync::Arc;

use node_attestation_core::unshared::Unshared;

/// The unanswered requests, sorted by creation time (in seconds since 1970). Clones share their state. Not shared
/// between clusters: each cluster has a separate queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending(Arc<Unshared<BTreeSet<(i64, u64)>>>);

impl Pending {
    /// Adds a request. `number` must be unique.
    pub(crate) fn add(&self, created: i64, number: u64) {
        self.0.lock().insert((created, number));
    }

    /// Removes a request, if the queue contains it.
    pub(crate) fn remove(&self, created: i64, number: u64) {
        self.0.lock().remove(&(created, number));
    }

    /// The number of requests, and the creation time of the oldest request.
    pub(crate) fn summary(&self) -> (usize, Option<i64>) {
        let all = self.0.lock();
        (all.len(), all.first().map(|(created, _)| *created))
    }
}
