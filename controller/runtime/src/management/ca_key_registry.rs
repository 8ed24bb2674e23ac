//! The CA keys of the served clusters, those of other replicas' shards included.

use std::collections::BTreeMap;

use node_attestation_core::crd::PublishedCaKey;
use node_attestation_core::identifiers::KeyDigest;
use tokio::sync::watch;

use crate::capi::{ClusterCa, ObjectKey};

/// The CA keys of all served clusters.
///
/// The certificates of two clusters with one key are valid in both, so neither cluster is served.
///
/// A CA certificate is public, so a tenant can claim any key by its certificate alone. Such a claim affects only
/// clusters of the same namespace.
///
/// With an external signer nobody proves a key that it has. There a claim by the certificate alone also affects the
/// claims of other namespaces that are later, and not proved either: the first cluster stays served, and the later one
/// is not. What was published before this process began comes first. Of two that were published at the same time, by
/// replicas that did not know of the other, the first by name counts.
///
/// Clusters that are served here are known by their Secrets, at once. Those of other shards are known by what
/// their `KubeletAuthentication`s publish, so two clusters that get one key at the same time are both served
/// until each status was written and seen.
#[derive(Debug, Clone, Default)]
pub(super) struct CaKeys {
    entries: watch::Sender<BTreeMap<ObjectKey, Entry>>,
    has_external_signer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    key: CaKey,
    /// Whether the cluster is served here; what its `KubeletAuthentication` publishes does not count then.
    is_held: bool,
    /// The place of the cluster's claim of this key among all claims.
    turn: u64,
}

/// The key of a cluster's CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CaKey {
    digest: KeyDigest,
    /// Whether the Secret has the key itself, beside the certificate.
    is_proved: bool,
}

/// The entry of one cluster; dropping the holder removes it.
#[derive(Debug)]
pub(super) struct CaKeyHolder {
    all: CaKeys,
    cluster: ObjectKey,
    changes: watch::Receiver<BTreeMap<ObjectKey, Entry>>,
    key: Option<CaKey>,
    /// Whether the Secret was read.
    is_known: bool,
    /// The last result of [`CaKeyHolder::hold`].
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
    /// A registry without keys; an external signer has those that are in no Secret.
    pub(super) fn new(has_external_signer: bool) -> Self {
        Self {
            has_external_signer,
            ..Self::default()
        }
    }

    pub(super) fn holder(&self, cluster: ObjectKey) -> CaKeyHolder {
        CaKeyHolder {
            all: self.clone(),
            cluster,
            changes: self.entries.subscribe(),
            key: None,
            is_known: false,
            told: None,
        }
    }

    /// Records the key that the `KubeletAuthentication` of a cluster publishes; `None`: none, or it is deleted.
    pub(super) fn published(&self, cluster: &ObjectKey, key: Option<&PublishedCaKey>) {
        if !self.is_held(cluster) {
            self.set(cluster, key.and_then(CaKey::published), false);
        }
    }

    /// Forgets the published keys of clusters without a `KubeletAuthentication`.
    pub(super) fn forget_all_but(&self, is_there: impl Fn(&ObjectKey) -> bool) {
        self.entries.send_if_modified(|keys| {
            let before = keys.len();
            keys.retain(|cluster, entry| entry.is_held || is_there(cluster));
            keys.len() != before
        });
    }

    fn is_held(&self, cluster: &ObjectKey) -> bool {
        let keys = self.entries.borrow();
        keys.get(cluster).is_some_and(|entry| entry.is_held)
    }

    fn set(&self, cluster: &ObjectKey, key: Option<CaKey>, is_held: bool) {
        self.entries.send_if_modified(|keys| {
            let former = match key {
                Some(key) => {
                    let turn = turn(keys, cluster, key);
                    let entry = Entry { key, is_held, turn };
                    keys.insert(cluster.clone(), entry)
                }
                None => keys.remove(cluster),
            };
            former.map(|entry| entry.key) != key
        });
    }

    /// Another cluster with the same CA key, whose claim counts.
    fn other(&self, keys: &BTreeMap<ObjectKey, Entry>, cluster: &ObjectKey) -> Option<ObjectKey> {
        let own = keys.get(cluster)?;
        let mut others = keys.iter().filter(|(other, entry)| {
            let may_say_so = entry.key.is_proved || other.namespace == cluster.namespace;
            let is_first = self.has_external_signer
                && !own.key.is_proved
                && (entry.turn < own.turn || (!entry.is_held && *other < cluster));
            entry.key.digest == own.key.digest && (may_say_so || is_first) && *other != cluster
        });
        others.next().map(|(other, _)| other.clone())
    }
}

/// The place of the cluster's claim: as before for the same key, or after all others.
fn turn(keys: &BTreeMap<ObjectKey, Entry>, cluster: &ObjectKey, key: CaKey) -> u64 {
    match keys.get(cluster) {
        Some(entry) if entry.key.digest == key.digest => entry.turn,
        Some(_) | None => {
            let last = keys.values().map(|entry| entry.turn).max();
            last.map_or(0, |last| last.saturating_add(1))
        }
    }
}

impl CaKeyHolder {
    /// Sets the cluster's key, and returns another cluster that has it too.
    pub(super) fn hold(&mut self, key: Option<CaKey>) -> Option<ObjectKey> {
        self.key = key;
        self.is_known = true;
        self.all.set(&self.cluster, key, true);
        self.told = self
            .all
            .other(&self.changes.borrow_and_update(), &self.cluster);
        self.told.clone()
    }

    /// Whether the claim is the later one of two by certificates alone: it counts for nobody, and is not published, or
    /// it would be the first after a restart.
    fn is_late(&self) -> bool {
        let is_of_another = |told: &ObjectKey| told.namespace != self.cluster.namespace;
        self.all.has_external_signer
            && self.key.is_some_and(|key| !key.is_proved)
            && self.told.as_ref().is_some_and(is_of_another)
    }

    /// The key as the status has it: as `before` while nothing is known.
    pub(super) fn publication(&self, before: Option<PublishedCaKey>) -> Option<PublishedCaKey> {
        if !self.is_known {
            return before;
        }
        let key = self.key.filter(|_| !self.is_late());
        key.map(|key| PublishedCaKey {
            spki_sha256: key.digest.to_string(),
            proved: key.is_proved,
        })
    }

    /// Leaves the cluster, with its key, to another replica.
    pub(super) fn leave(mut self) {
        let is_late = self.is_late();
        if let Some(key) = self.key.take() {
            let left = (!is_late).then_some(key);
            self.all.set(&self.cluster, left, false);
        }
    }

    /// Waits until [`Self::hold`] would return something else. Changes of unrelated keys do not wake this cluster.
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

    /// Also checks the cluster's own entry: a predecessor of this holder may have been dropped only now.
    fn is_as_told(&self) -> bool {
        let keys = self.changes.borrow();
        let own = keys.get(&self.cluster).map(|entry| entry.key);
        own == self.key && self.all.other(&keys, &self.cluster) == self.told
    }
}

impl Drop for CaKeyHolder {
    fn drop(&mut self) {
        if self.all.is_held(&self.cluster) {
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
        assert_eq!(victim.hold(Some(key(1, false))), None, "without its key");
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
        assert!(keys.entries.borrow().contains_key(&cluster("a")));
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

    #[test]
    fn of_two_external_keys_the_first_cluster_stays_served() {
        let keys = CaKeys::new(true);
        // The order of the names does not decide.
        let (mut first, mut later) = (keys.holder(cluster("b")), keys.holder(cluster("a")));
        assert_eq!(first.hold(Some(key(1, false))), None);

        assert_eq!(later.hold(Some(key(1, false))), Some(cluster("b")));

        assert_eq!(first.changed().now_or_never(), None);
        assert_eq!(first.hold(Some(key(1, false))), None);
        assert_eq!(first.publication(None), Some(published(1, false)));
        assert_eq!(later.publication(Some(published(1, false))), None);
        drop(first);
        assert_eq!(later.changed().now_or_never(), Some(()));
        assert_eq!(later.hold(Some(key(1, false))), None);
        assert_eq!(later.publication(None), Some(published(1, false)));
    }

    #[test]
    fn an_external_key_stands_in_the_way_of_no_cluster_that_proves_it() {
        let keys = CaKeys::new(true);
        let (mut first, mut owner) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        assert_eq!(first.hold(Some(key(1, false))), None);

        assert_eq!(owner.hold(Some(key(1, true))), None);

        assert_eq!(first.changed().now_or_never(), Some(()));
        assert_eq!(first.hold(Some(key(1, false))), Some(cluster("b")));
    }

    #[test]
    fn a_cluster_that_takes_over_anothers_external_key_is_the_later_one() {
        let keys = CaKeys::new(true);
        let (mut tenant, mut victim) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        tenant.hold(Some(key(1, false)));
        victim.hold(Some(key(2, false)));

        assert_eq!(tenant.hold(Some(key(2, false))), Some(cluster("b")));
        assert_eq!(victim.hold(Some(key(2, false))), None);
    }

    #[test]
    fn after_a_restart_the_external_key_is_of_the_cluster_that_published_it() {
        let keys = CaKeys::new(true);
        keys.published(&cluster("b"), Some(&published(1, false)));
        let (mut later, mut first) = (keys.holder(cluster("a")), keys.holder(cluster("b")));

        assert_eq!(later.hold(Some(key(1, false))), Some(cluster("b")));
        assert_eq!(first.hold(Some(key(1, false))), None);
        assert_eq!(later.changed().now_or_never(), None);
    }

    #[test]
    fn two_replicas_that_got_one_external_key_at_a_time_agree_on_the_cluster_that_has_it() {
        let (here, there) = (CaKeys::new(true), CaKeys::new(true));
        let (mut one, mut two) = (here.holder(cluster("a")), there.holder(cluster("b")));
        assert_eq!(one.hold(Some(key(1, false))), None);
        assert_eq!(two.hold(Some(key(1, false))), None);

        here.published(&cluster("b"), two.publication(None).as_ref());
        there.published(&cluster("a"), one.publication(None).as_ref());

        assert_eq!(one.hold(Some(key(1, false))), None);
        assert_eq!(two.hold(Some(key(1, false))), Some(cluster("a")));
        assert_eq!(two.publication(None), None);
    }

    #[test]
    fn a_later_cluster_that_is_left_to_another_replica_takes_no_external_key_with_it() {
        let keys = CaKeys::new(true);
        let (mut first, mut later) = (keys.holder(cluster("b")), keys.holder(cluster("a")));
        first.hold(Some(key(1, false)));
        later.hold(Some(key(1, false)));

        later.leave();

        assert_eq!(first.hold(Some(key(1, false))), None);
        let mut back = keys.holder(cluster("a"));
        first.leave();
        assert_eq!(back.hold(Some(key(1, false))), Some(cluster("b")));
    }
}
