//! The CA keys of the served clusters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_attestation_core::identifiers::KeyDigest;
use tokio::sync::watch;

use crate::capi::{ClusterCa, ObjectKey};

/// The CA keys of all served clusters.
///
/// The certificates of two clusters with one key are good in both: neither may have any made.
///
/// A CA certificate is public, so a tenant can claim any by its certificate alone. Such a claim
/// stands in the way of nobody but clusters of the same namespace.
#[derive(Debug, Clone, Default)]
pub(super) struct CaKeys {
    keys: Arc<Mutex<BTreeMap<ObjectKey, CaKey>>>,
    changes: watch::Sender<u64>,
}

/// The key of a cluster's CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CaKey {
    digest: KeyDigest,
    /// Whether the key itself is there, and not only the certificate that names it.
    is_proved: bool,
}

/// One cluster's place among them; given up when it is dropped.
#[derive(Debug)]
pub(super) struct CaKeyHolder {
    all: CaKeys,
    cluster: ObjectKey,
    changes: watch::Receiver<u64>,
    key: Option<CaKey>,
    /// What was said last of others.
    told: Option<ObjectKey>,
}

impl CaKey {
    pub(super) fn of(ca: &ClusterCa) -> Self {
        Self {
            digest: ca.key_digest(),
            is_proved: ca.signer().is_some(),
        }
    }
}

impl CaKeys {
    pub(super) fn holder(&self, cluster: ObjectKey) -> CaKeyHolder {
        CaKeyHolder {
            all: self.clone(),
            cluster,
            changes: self.changes.subscribe(),
            key: None,
            told: None,
        }
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, CaKey>> {
        // Every change of the map is one insertion or removal, so a panic elsewhere leaves it whole.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, cluster: &ObjectKey, key: Option<CaKey>) {
        let former = match key {
            Some(key) => self.keys().insert(cluster.clone(), key),
            None => self.keys().remove(cluster),
        };
        if former != key {
            self.changes
                .send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Another cluster whose CA key is this cluster's, and that may say so.
    fn other(&self, cluster: &ObjectKey) -> Option<ObjectKey> {
        let keys = self.keys();
        let own = keys.get(cluster)?;
        let mut others = keys.iter().filter(|(other, key)| {
            let may_say_so = key.is_proved || other.namespace == cluster.namespace;
            key.digest == own.digest && may_say_so && *other != cluster
        });
        others.next().map(|(other, _)| other.clone())
    }
}

impl CaKeyHolder {
    /// Says which key the cluster has now, and finds another cluster that has it too.
    pub(super) fn hold(&mut self, key: Option<CaKey>) -> Option<ObjectKey> {
        self.key = key;
        self.all.set(&self.cluster, key);
        self.changes.mark_unchanged();
        self.told = self.all.other(&self.cluster);
        self.told.clone()
    }

    /// Waits until [`Self::hold`] would say something else. What others do with keys of their own
    /// is no work for this cluster.
    pub(super) async fn changed(&mut self) {
        loop {
            if self.changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if !self.is_as_told() {
                return;
            }
        }
    }

    /// Also whether the cluster is still known to have its key: a predecessor of this holder may
    /// have been dropped only now.
    fn is_as_told(&self) -> bool {
        let own = self.all.keys().get(&self.cluster).copied();
        own == self.key && self.all.other(&self.cluster) == self.told
    }
}

impl Drop for CaKeyHolder {
    fn drop(&mut self) {
        self.all.set(&self.cluster, None);
    }
}

#[cfg(test)]
mod tests {
    use futures::future::FutureExt as _;

    use super::*;

    /// A key, and whether it is proved.
    fn key(byte: u8, is_proved: bool) -> CaKey {
        CaKey {
            digest: KeyDigest::of(&[byte]),
            is_proved,
        }
    }

    fn cluster(namespace: &str) -> ObjectKey {
        ObjectKey::new(namespace, "prod-1")
    }

    #[test]
    fn two_clusters_that_have_one_key_stand_in_each_others_way() {
        let keys = CaKeys::default();
        let (mut one, mut two) = (keys.holder(cluster("a")), keys.holder(cluster("b")));

        assert_eq!(one.hold(Some(key(1, true))), None);
        assert_eq!(two.hold(Some(key(1, true))), Some(cluster("a")));
        assert_eq!(one.changed().now_or_never(), Some(()));
        assert_eq!(one.hold(Some(key(1, true))), Some(cluster("b")));

        drop(two);
        assert_eq!(one.changed().now_or_never(), Some(()));
        assert_eq!(one.hold(Some(key(1, true))), None);
    }

    #[test]
    fn a_tenant_that_shows_anothers_ca_certificate_stops_nobody_but_itself() {
        let keys = CaKeys::default();
        let (mut victim, mut tenant) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        victim.hold(Some(key(1, true)));

        assert_eq!(tenant.hold(Some(key(1, false))), Some(cluster("a")));

        assert_eq!(victim.changed().now_or_never(), None);
        assert_eq!(victim.hold(Some(key(1, true))), None);
        assert_eq!(
            victim.hold(Some(key(1, false))),
            None,
            "in approve-only mode"
        );
    }

    #[test]
    fn clusters_of_one_namespace_need_no_proof() {
        let keys = CaKeys::default();
        let mut one = keys.holder(cluster("a"));
        let mut two = keys.holder(ObjectKey::new("a", "prod-2"));
        one.hold(Some(key(1, true)));

        two.hold(Some(key(1, false)));

        assert_eq!(
            one.hold(Some(key(1, true))),
            Some(ObjectKey::new("a", "prod-2"))
        );
    }

    #[test]
    fn a_cluster_that_is_made_anew_while_its_former_self_ends_keeps_its_key() {
        let keys = CaKeys::default();
        let (former, mut one) = (keys.holder(cluster("a")), keys.holder(cluster("a")));
        one.hold(Some(key(1, true)));

        drop(former);

        assert_eq!(one.changed().now_or_never(), Some(()));
        one.hold(Some(key(1, true)));
        assert!(keys.keys().contains_key(&cluster("a")));
    }

    #[test]
    fn a_tenant_that_changes_its_ca_all_the_time_wakes_nobody() {
        let keys = CaKeys::default();
        let (mut one, mut busy) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        one.hold(Some(key(1, true)));

        for byte in 2..10 {
            busy.hold(Some(key(byte, true)));
            assert_eq!(one.changed().now_or_never(), None, "{byte}");
        }
    }
}
