//! The observations about TPMs, for all clusters.

use std::sync::Arc;

use node_attestation_runtime::shared::{InUse, Lock};
use node_attestation_tpm::observations::Observations;

/// Keeps a cluster's observations as long as one of its verifiers exists, because each reconciliation of a cluster
/// creates a new verifier.
#[derive(Debug, Clone)]
pub(crate) struct ObservationsOfClusters(Arc<InUse<String, Observations>>);

impl Default for ObservationsOfClusters {
    fn default() -> Self {
        Self(Arc::new(InUse::new(Lock::Observations)))
    }
}

impl ObservationsOfClusters {
    /// The observations of the cluster with this UID, in this namespace.
    pub(crate) fn of(&self, cluster_uid: &str, namespace: &str) -> Arc<Observations> {
        let new = || Arc::new(Observations::of_namespace(namespace));
        self.0.get_or_insert_with(cluster_uid.to_owned(), new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_of_one_cluster_share_their_observations() {
        let clusters = ObservationsOfClusters::default();
        let first = clusters.of("one", "tenant-a");

        assert!(Arc::ptr_eq(&first, &clusters.of("one", "tenant-a")));
        assert!(!Arc::ptr_eq(&first, &clusters.of("another", "tenant-a")));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
    }
}
