//! The readers for `ConfigMaps` with endorsement keys, for all clusters.

use std::sync::Arc;

use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::config_maps::ConfigMaps;
use node_attestation_runtime::shared::{InUse, Lock};
use node_attestation_tpm::key_lists::{KeyList, KeyLists};

/// A namespace, and names in it. The names are shared and not copied, because a tenant determines their length, and
/// copies would be made under the lock of all readers.
type Names = Arc<(String, Vec<String>)>;

/// Reads `ConfigMaps` in one management cluster.
///
/// Verifiers that use the same `ConfigMaps` share their contents, because each reconciliation of a cluster creates a
/// new verifier.
#[derive(derive_more::Debug, Clone)]
#[debug("ConfigMapReader")]
pub(crate) struct ConfigMapReader {
    management: ClusterAccess,
    read: Arc<InUse<Names, ConfigMaps<KeyList>>>,
}

impl ConfigMapReader {
    pub(crate) fn new(management: &ClusterAccess) -> Self {
        Self {
            management: management.clone(),
            read: Arc::new(InUse::new(Lock::ConfigMapReaders)),
        }
    }

    /// The key lists in the `ConfigMaps` with these names.
    pub(crate) fn lists(&self, namespace: &str, names: &[String]) -> Arc<dyn KeyLists> {
        let key = Arc::new((namespace.to_owned(), names.to_owned()));
        let new = || {
            Arc::new(ConfigMaps::new(
                &self.management,
                namespace,
                names,
                KeyList::of,
            ))
        };
        self.read.get_or_insert_with(key, new)
    }
}
