//! The owner of a cluster's records.

use super::{Health, PeriodicTasks, part};

impl PeriodicTasks {
    /// Makes the Cluster the owner of its records. This is repeated until all records have the owner, and after Cluster
    /// API starts to serve a different version.
    pub(super) async fn own_records(&mut self, health: &mut Health) {
        let version = self.inventory.cluster_version();
        let Some((records, uid)) = self.owned.as_ref().filter(|_| self.owned_in != version) else {
            return;
        };
        let owned = part(records.end_with(uid)).await;
        if health.note("the owners of node identities", owned) == Some(true) {
            self.owned_in = version;
        }
    }
}
