//! The holders of the Leases, so that replicas hold equally many.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The holders of the Leases of all shards, as this replica saw them last.
#[derive(Debug, Clone, Default)]
pub(in crate::management) struct Holders(Arc<Mutex<BTreeMap<String, String>>>);

impl Holders {
    pub(super) fn saw(&self, lease: &str, holder: &str) {
        self.0.lock().insert(lease.to_owned(), holder.to_owned());
    }

    /// Whether `from` is to leave a Lease to `to`. With a difference of one nothing is gained, and the Lease would
    /// move to and fro.
    pub(super) fn is_uneven(&self, from: &str, to: &str) -> bool {
        let holders = self.0.lock();
        let count = |identity| {
            holders
                .values()
                .filter(|holder| *holder == identity)
                .count()
        };
        count(from) >= count(to) + 2
    }

    /// Whether this is the Lease that `holder` is asked for: the last of its Leases, so that one moves at a time.
    pub(super) fn is_last(&self, lease: &str, holder: &str) -> bool {
        let holders = self.0.lock();
        let mut held = holders.iter().filter(|(_, one)| *one == holder);
        held.next_back().is_some_and(|(last, _)| last == lease)
    }
}
