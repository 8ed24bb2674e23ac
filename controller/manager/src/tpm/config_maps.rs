//! The `ConfigMaps` with endorsement keys, of all clusters.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::config_maps::ConfigMaps;
use node_attestation_tpm::key_lists::{KeyList, KeyLists};
use parking_lot::Mutex;

/// A namespace, and names in it.
type Names = (String, Vec<String>);

/// Reads `ConfigMaps` of one management cluster.
///
/// Verifiers of the same `ConfigMaps` share their contents: each reconciliation of a cluster creates a verifier.
#[derive(derive_more::Debug, Clone)]
#[debug("ConfigMapReader")]
pub(crate) struct ConfigMapReader {
    management: ClusterAccess,
    read: Arc<Mutex<HashMap<Names, Weak<ConfigMaps<KeyList>>>>>,
}

impl ConfigMapReader {
    pub(crate) fn new(management: &ClusterAccess) -> Self {
        Self {
            management: management.clone(),
            read: Arc::default(),
        }
    }

    /// The lists in the `ConfigMaps` of these names.
    pub(crate) fn lists(&self, namespace: &str, names: &[String]) -> Arc<dyn KeyLists> {
        let mut read = self.read.lock();
        let key = (namespace.to_owned(), names.to_owned());
        if let Some(known) = read.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        read.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(ConfigMaps::new(&self.management, namespace, names));
        read.insert(key, Arc::downgrade(&new));
        new
    }
}
