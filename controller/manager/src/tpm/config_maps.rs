//! The `ConfigMaps` with endorsement keys, of all clusters.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::config_maps::ConfigMaps;
use node_attestation_tpm::key_lists::{KeyList, KeyLists};

/// A namespace, and names in it.
type Names = (String, Vec<String>);

/// Reads `ConfigMaps` of one management cluster.
///
/// Verifiers of the same `ConfigMaps` share their contents: each reconciliation of a cluster creates a verifier.
#[derive(Clone)]
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
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
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

impl fmt::Debug for ConfigMapReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigMapReader").finish_non_exhaustive()
    }
}
