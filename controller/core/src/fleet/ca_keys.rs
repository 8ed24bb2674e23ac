//! Which CA key is whose.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::capi::{KeyDigest, ObjectKey};

/// The CA keys of all clusters that are looked after.
///
/// The certificates of two clusters with one key are good in both: neither may have any made.
#[derive(Debug, Clone)]
pub(super) struct CaKeys {
    keys: Arc<Mutex<BTreeMap<ObjectKey, KeyDigest>>>,
    changes: watch::Sender<u64>,
}

/// One cluster's place among them; given up when it is dropped.
#[derive(Debug)]
pub(super) struct CaKeyHolder {
    all: CaKeys,
    cluster: ObjectKey,
    changes: watch::Receiver<u64>,
}

impl Default for CaKeys {
    fn default() -> Self {
        Self {
            keys: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl CaKeys {
    pub(super) fn holder(&self, cluster: ObjectKey) -> CaKeyHolder {
        CaKeyHolder {
            all: self.clone(),
            cluster,
            changes: self.changes.subscribe(),
        }
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, KeyDigest>> {
        // Every change of the map is one insertion or removal, so a panic elsewhere leaves it whole.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, cluster: &ObjectKey, key: Option<KeyDigest>) {
        let former = match key {
            Some(key) => self.keys().insert(cluster.clone(), key),
            None => self.keys().remove(cluster),
        };
        if former != key {
            self.changes
                .send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}

impl CaKeyHolder {
    /// Says which key the cluster has now, and finds another cluster that has it too.
    pub(super) fn hold(&mut self, key: Option<KeyDigest>) -> Option<ObjectKey> {
        self.all.set(&self.cluster, key);
        self.changes.mark_unchanged();
        let keys = self.all.keys();
        let mut same = keys.iter().filter(|(_, other)| Some(**other) == key);
        let other = same.find(|(cluster, _)| **cluster != self.cluster);
        other.map(|(cluster, _)| cluster.clone())
    }

    /// Waits until any cluster's key is another.
    pub(super) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for CaKeyHolder {
    fn drop(&mut self) {
        self.all.set(&self.cluster, None);
    }
}
