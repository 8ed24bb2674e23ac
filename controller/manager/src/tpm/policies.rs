//! The TPM policies for all clusters.

use std::sync::Arc;

use node_attestation_runtime::shared::{InUse, Lock};
use node_attestation_tpm::policy::KeptPolicy;

/// Keeps a cluster's policy as long as the cluster's verifiers or their parsed settings exist.
#[derive(Debug, Clone)]
pub(crate) struct PoliciesOfClusters(Arc<InUse<String, KeptPolicy>>);

impl Default for PoliciesOfClusters {
    fn default() -> Self {
        // The map of observations has the same owners, so both maps use the same lock name.
        Self(Arc::new(InUse::new(Lock::Observations)))
    }
}

impl PoliciesOfClusters {
    /// The policy for the cluster with this UID.
    pub(crate) fn of(&self, cluster_uid: &str) -> Arc<KeptPolicy> {
        self.0
            .get_or_insert_with(cluster_uid.to_owned(), Arc::default)
    }
}
