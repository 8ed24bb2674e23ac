//! The CA keys of the served clusters, those of other replicas' shards included.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_attestation_core::crd::PublishedCaKey;
use node_attestation_core::identifiers::KeyDigest;
use tokio::sync::watch;

use crate::capi::{ClusterCa, ObjectKey};

/// The CA keys of all served clusters.
///
/// The certificates of two clusters with one key are good in both: neither may have any made.
///
/// A CA certificate is public, so a tenant can claim any by its certificate alone. Such a claim
/// stands in the way of nobody but clusters of the same namespace.
///
/// Clusters that are served here are known by their Secrets, at once. Those of other shards are known by what
/// their `KubeletAuthentication`s publish, so two clusters that get one key at the same time are both served
/// until each status was written and seen.
#[derive(Debug, Clone, Default)]
pub(super) struct CaKeys {
    keys: Arc<Mutex<BTreeMap<ObjectKey, Entry>>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    key: CaKey,
    /// Whether the cluster is served here; what its `KubeletAuthentication` publishes does not count then.
    is_held: bool,
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
    /// Whether the Secret was read.
    is_known: bool,
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

    fn published(published: &PublishedCaKey) -> Option<Self> {
        Some(Self {
            digest: KeyDigest::parse(&published.spki_sha256).ok()?,
            is_proved: published.proved,
        })
    }
}

impl CaKeys {
    pub(super) fn holder(&self, cluster: ObjectKey) -> CaKeyHolder {
        CaKeyHolder {
            all: self.clone(),
            cluster,
            changes: self.changes.subscribe(),
            key: None,
            is_known: false,
            told: None,
        }
    }

    /// Takes note of what the `KubeletAuthentication` of a cluster publishes; `None`: nothing, or it is gone.
    pub(super) fn published(&self, cluster: &ObjectKey, key: Option<&PublishedCaKey>) {
        let is_held = self.keys().get(cluster).is_some_and(|entry| entry.is_held);
        if !is_held {
            self.set(cluster, key.and_then(CaKey::published), false);
        }
    }

    /// Forgets what was published by `KubeletAuthentication`s that are not there.
    pub(super) fn forget_all_but(&self, is_there: impl Fn(&ObjectKey) -> bool) {
        let mut keys = self.keys();
        let before = keys.len();
        keys.retain(|cluster, entry| entry.is_held || is_there(cluster));
        let changed = keys.len() != before;
        drop(keys);
        if changed {
            self.change();
        }
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Entry>> {
        // Every change of the map is one insertion or removal, so a panic elsewhere leaves it whole.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, cluster: &ObjectKey, key: Option<CaKey>, is_held: bool) {
        let former = match key {
            Some(key) => self.keys().insert(cluster.clone(), Entry { key, is_held }),
            None => self.keys().remove(cluster),
        };
        if former.map(|entry| entry.key) != key {
            self.change();
        }
    }

    fn change(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Another cluster whose CA key is this cluster's, and that may say so.
    fn other(&self, cluster: &ObjectKey) -> Option<ObjectKey> {
        let keys = self.keys();
        let own = keys.get(cluster)?.key;
        let mut others = keys.iter().filter(|(other, Entry { key, .. })| {
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
        self.is_known = true;
        self.all.set(&self.cluster, key, true);
        self.changes.mark_unchanged();
        self.told = self.all.other(&self.cluster);
        self.told.clone()
    }

    /// The key as the status has it: as `before` while nothing is known.
    pub(super) fn publication(&self, before: Option<PublishedCaKey>) -> Option<PublishedCaKey> {
        if !self.is_known {
            return before;
        }
        self.key.map(|key| PublishedCaKey {
            spki_sha256: key.digest.to_string(),
            proved: key.is_proved,
        })
    }

    /// Leaves the cluster, with its key, to another replica.
    pub(super) fn leave(mut self) {
        if let Some(key) = self.key.take() {
            self.all.set(&self.cluster, Some(key), false);
        }
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
        let own = self.all.keys().get(&self.cluster).map(|entry| entry.key);
        own == self.key && self.all.other(&self.cluster) == self.told
    }
}

impl Drop for CaKeyHolder {
    fn drop(&mut self) {
        let is_held = |entry: &Entry| entry.is_held;
        if self.all.keys().get(&self.cluster).is_some_and(is_held) {
            self.all.set(&self.cluster, None, false);
        }
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

    fn published(byte: u8, is_proved: bool) -> PublishedCaKey {
        PublishedCaKey {
            spki_sha256: key(byte, true).digest.to_string(),
            proved: is_proved,
        }
    }

    #[test]
    fn a_cluster_of_another_shard_is_known_by_what_is_published_of_it() {
        let keys = CaKeys::default();
        let mut one = keys.holder(cluster("a"));
        one.hold(Some(key(1, true)));

        keys.published(&cluster("b"), Some(&published(1, true)));
        assert_eq!(one.changed().now_or_never(), Some(()));
        assert_eq!(one.hold(Some(key(1, true))), Some(cluster("b")));

        keys.published(&cluster("b"), None);
        assert_eq!(one.hold(Some(key(1, true))), None);
        keys.published(&cluster("b"), Some(&published(1, false)));
        assert_eq!(one.hold(Some(key(1, true))), None, "it is not proved");
    }

    #[test]
    fn what_is_published_of_a_cluster_that_is_served_here_does_not_count() {
        let keys = CaKeys::default();
        let (mut one, mut two) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        two.hold(Some(key(2, true)));

        keys.published(&cluster("b"), Some(&published(1, true)));

        assert_eq!(one.hold(Some(key(1, true))), None);
    }

    #[test]
    fn a_cluster_that_is_left_to_another_replica_keeps_its_key_until_it_is_deleted() {
        let keys = CaKeys::default();
        let (mut one, mut two) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        one.hold(Some(key(1, true)));
        two.hold(Some(key(1, true)));

        two.leave();
        assert_eq!(one.hold(Some(key(1, true))), Some(cluster("b")));

        keys.forget_all_but(|_| true);
        assert_eq!(one.hold(Some(key(1, true))), Some(cluster("b")));
        keys.forget_all_but(|other| *other == cluster("a"));
        assert_eq!(one.changed().now_or_never(), Some(()));
        assert_eq!(one.hold(Some(key(1, true))), None);
    }

    #[test]
    fn a_key_is_published_once_the_secret_was_read() {
        let keys = CaKeys::default();
        let mut one = keys.holder(cluster("a"));
        let before = Some(published(1, true));
        assert_eq!(one.publication(before.clone()), before);

        one.hold(Some(key(2, false)));
        assert_eq!(one.publication(before.clone()), Some(published(2, false)));
        one.hold(None);
        assert_eq!(one.publication(before), None);
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
