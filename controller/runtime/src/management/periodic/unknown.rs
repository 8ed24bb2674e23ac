//! The objects of a cluster whose data is unknown.

use super::PeriodicTasks;

impl PeriodicTasks {
    /// Pools that a limit truncates, and the first object of each group that cannot be read: Cluster API's objects that
    /// are watched, those that are read by their names, and `NodeIdentities`.
    pub(super) fn unknown(&self) -> impl Iterator<Item = String> {
        let records = self.context.ledger.records();
        let unknown = [
            self.inventory.unknown_members(),
            self.inventory.unreadable_members(),
            self.inventory.undecoded(),
            records.invalid(),
        ];
        unknown.into_iter().flatten()
    }
}
