//! The objects of a cluster that have unknown data.

use super::PeriodicTasks;

impl PeriodicTasks {
    /// Pools that a limit truncates, and the first unreadable object in each of these groups: watched Cluster API
    /// objects, Cluster API objects that are read by name, `NodeIdentities`, and requests.
    pub(super) fn unknown(&self) -> impl Iterator<Item = String> {
        let records = self.context.ledger.records();
        let unknown = [
            self.inventory.unknown_members(),
            self.inventory.unreadable_members(),
            self.inventory.undecoded(),
            records.invalid(),
            self.unreadable_requests.message(),
        ];
        unknown.into_iter().flatten()
    }
}
