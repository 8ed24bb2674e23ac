//! The observations of TPMs, for all clusters.

use std::sync::{Arc, Weak};

use node_attestation_runtime::shared::{Shared, Swept};
use node_attestation_tpm::observations::Observations;

/// Keeps the observations of each cluster for as long as one of its verifiers exists. Each reconciliation of a cluster
/// creates a verifier.
#[derive(Debug, Clone)]
pub(crate) struct ObservationsOfClusters(Arc<Shared<Swept<String, Weak<Observations>>>>);

impl Default for ObservationsOfClusters {
    fn default() -> Self {
        Self(Arc::new(Shared::new(
            "observations of clusters",
            Swept::default(),
        )))
    }
}

impl ObservationsOfClusters {
    /// The observations of the cluster with this UID.
    pub(crate) fn of(&self, cluster_uid: &str) -> Arc<Observations> {
        self.0.write(|known| {
            if let Some(known) = known.get(cluster_uid).and_then(Weak::upgrade) {
                return known;
            }
            let new = Arc::default();
            let is_dead = |_: &_, known: &mut Weak<_>| known.strong_count() == 0;
            known.insert(cluster_uid.to_owned(), Arc::downgrade(&new), is_dead);
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_of_one_cluster_share_their_observations() {
        let clusters = ObservationsOfClusters::default();
        let first = clusters.of("one");

        assert!(Arc::ptr_eq(&first, &clusters.of("one")));
        assert!(!Arc::ptr_eq(&first, &clusters.of("another")));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
    }
}
