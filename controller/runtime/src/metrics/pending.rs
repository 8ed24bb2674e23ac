//! The requests of a queue that have no answer yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// The requests without an answer, by their times of creation (Unix, in seconds). Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending(Arc<Mutex<BTreeSet<(i64, u64)>>>);

impl Pending {
    /// Adds a request. `number` is its own.
    pub(crate) fn add(&self, created: i64, number: u64) {
        self.0.lock().insert((created, number));
    }

    /// Removes a request, if it is there.
    pub(crate) fn remove(&self, created: i64, number: u64) {
        self.0.lock().remove(&(created, number));
    }

    /// Their number, and the time of the oldest.
    pub(crate) fn summary(&self) -> (usize, Option<i64>) {
        let all = self.0.lock();
        (all.len(), all.first().map(|(created, _)| *created))
    }
}
