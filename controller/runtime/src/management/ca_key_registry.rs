//! The CA keys of the served clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use node_attestation_core::identifiers::KeyDigest;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::capi::{ClusterCa, ObjectKey};
use crate::shared::{Lock, Shared, visited};

/// The minimum time between two checks by a holder. A tenant can have a thousand Clusters that share one key, and a
/// change to one Cluster would otherwise wake the tasks of all of them.
const BETWEEN_CHECKS: Duration = Duration::from_secs(1);

/// The CA keys of all clusters of this controller.
///
/// If two clusters have the same CA key, their certificates are valid in both clusters. Therefore a cluster is not
/// served while another cluster has proved possession of the same key.
///
/// Only a Secret that contains the private key proves possession. A CA certificate is public: a tenant who uses another
/// tenant's certificate blocks only the service of their own cluster. Two clusters that have the private key block each
/// other's service. This gives no additional power to the owner of the key, who can already issue certificates for the
/// other cluster. The creation time and the namespace of a cluster are irrelevant.
///
/// Clusters without the private key do not affect each other. An external signer identifies the cluster of each CA, and
/// refuses to sign for a different cluster.
#[derive(Debug, Clone)]
pub(super) struct CaKeys(Arc<Shared<Keys>>);

impl Default for CaKeys {
    fn default() -> Self {
        Self(Arc::new(Shared::new(Lock::CaKeys, Keys::default())))
    }
}

#[derive(Debug, Default)]
struct Keys {
    clusters: BTreeMap<ObjectKey, ClusterCaKey>,
    digests: BTreeMap<KeyDigest, OfDigest>,
}

/// The clusters that have one CA key.
#[derive(Debug, Default)]
struct OfDigest {
    /// The number of clusters.
    count: usize,
    /// The clusters that have proved possession of the key.
    proved: BTreeSet<ObjectKey>,
    /// Notifies the holders of this key. The holders of other keys are not woken, because a tenant can change its keys
    /// at any rate.
    changes: watch::Sender<()>,
}

/// A cluster's CA key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClusterCaKey {
    digest: KeyDigest,
    /// Whether the Secret contains the private key.
    is_proved: bool,
}

/// Another cluster that has the private key of a cluster's CA.
#[derive(Debug)]
pub(super) struct OtherHolder {
    /// Its name, if it is in the same namespace.
    pub(super) name: Option<String>,
}

/// The entry of one cluster. Dropping the holder removes the entry.
#[derive(Debug)]
pub(super) struct CaKeyHolder {
    all: CaKeys,
    cluster: ObjectKey,
    /// Notifies about changes to the key's holders. `None` without a key.
    changes: Option<watch::Receiver<()>>,
    key: Option<ClusterCaKey>,
    /// The last result of [`CaKeyHolder::hold`].
    other: Option<ObjectKey>,
}

impl ClusterCaKey {
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
            changes: None,
            key: None,
            other: None,
        }
    }

    /// Sets a cluster's key. Returns the receiver for changes to the key's holders.
    fn set(&self, cluster: &ObjectKey, key: Option<ClusterCaKey>) -> Option<watch::Receiver<()>> {
        let (changes, senders) = self.0.write(|keys| keys.set(cluster, key));
        // The senders are notified after the lock is released, because many clusters can have the same key.
        for sender in senders {
            sender.send_replace(());
        }
        changes
    }
}

impl Keys {
    /// Sets a cluster's key. Returns the receiver for changes to the key's holders, and the senders to notify.
    fn set(
        &mut self,
        cluster: &ObjectKey,
        key: Option<ClusterCaKey>,
    ) -> (Option<watch::Receiver<()>>, Vec<watch::Sender<()>>) {
        let former = match key {
            Some(key) => self.clusters.insert(cluster.clone(), key),
            None => self.clusters.remove(cluster),
        };
        let mut changed = Vec::new();
        if former != key {
            changed.extend(former.and_then(|former| self.leave(cluster, former)));
            changed.extend(key.and_then(|key| self.join(cluster, key)));
        }
        let own = key.and_then(|key| self.digests.get(&key.digest));
        (own.map(|own| own.changes.subscribe()), changed)
    }

    /// Adds a cluster to the holders of its key. Returns the sender to notify.
    fn join(&mut self, cluster: &ObjectKey, key: ClusterCaKey) -> Option<watch::Sender<()>> {
        let own = self.digests.entry(key.digest).or_default();
        own.count += 1;
        let is_new = key.is_proved && own.proved.insert(cluster.clone());
        is_new.then(|| own.changes.clone())
    }

    /// Removes a cluster from the holders of its previous key. Returns the sender to notify.
    fn leave(&mut self, cluster: &ObjectKey, former: ClusterCaKey) -> Option<watch::Sender<()>> {
        let own = self.digests.get_mut(&former.digest)?;
        own.count -= 1;
        own.proved.remove(cluster);
        let changes = own.changes.clone();
        if own.count == 0 {
            self.digests.remove(&former.digest);
        }
        Some(changes)
    }

    /// Another cluster that has proved possession of the same CA key. The result is the next cluster by name, so that a
    /// change affects only a few of the clusters that have the key.
    fn other(&self, cluster: &ObjectKey) -> Option<ObjectKey> {
        let own = self.clusters.get(cluster)?;
        let proved = &self.digests.get(&own.digest)?.proved;
        let next = proved.range((Excluded(cluster), Unbounded)).take(1);
        let mut others = visited(next.chain(proved.iter().take(1)));
        others.find(|other| *other != cluster).cloned()
    }
}

impl CaKeyHolder {
    /// Sets the cluster's key. Returns another cluster that has proved possession of the same key.
    pub(super) fn hold(&mut self, key: Option<ClusterCaKey>) -> Option<ObjectKey> {
        self.key = key;
        self.changes = self.all.set(&self.cluster, key);
        // The result below already includes this change.
        if let Some(changes) = &mut self.changes {
            changes.mark_unchanged();
        }
        self.other = self.all.0.read(|keys| keys.other(&self.cluster));
        self.other.clone()
    }

    /// Sets the cluster's key, as [`hold`](Self::hold) does, and describes the other cluster that has this key.
    pub(super) fn compare(&mut self, key: Option<ClusterCaKey>) -> Option<OtherHolder> {
        let other = self.hold(key)?;
        let is_neighbor = self.cluster.namespace == other.namespace;
        Some(OtherHolder {
            name: is_neighbor.then_some(other.name),
        })
    }

    /// Waits until [`Self::hold`] would return a different result.
    pub(super) async fn changed(&mut self) {
        while let Some(changes) = &mut self.changes {
            // The last holder of the key drops the sender. In this case, the last holder is the predecessor of this
            // holder.
            let is_last = changes.changed().await.is_err();
            if !self.is_current() {
                return;
            }
            if is_last {
                break;
            }
            // Further changes during this wait do not wake the task.
            sleep(BETWEEN_CHECKS).await;
        }
        std::future::pending::<()>().await;
    }

    /// Whether the last result is still valid. The cluster's own entry is also compared, because this holder's
    /// predecessor might be dropped late.
    fn is_current(&self) -> bool {
        self.all.0.read(|keys| {
            let own = keys.clusters.get(&self.cluster).copied();
            own == self.key && keys.other(&self.cluster) == self.other
        })
    }
}

impl Drop for CaKeyHolder {
    fn drop(&mut self) {
        drop(self.all.set(&self.cluster, None));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use futures::future::FutureExt as _;

    use super::*;
    use crate::shared::testing::most_visited;

    fn proved(byte: u8) -> ClusterCaKey {
        ClusterCaKey {
            digest: KeyDigest::of(&[byte]),
            is_proved: true,
        }
    }

    /// The key of a CA whose Secret contains only the certificate, and not the private key.
    fn shown(byte: u8) -> ClusterCaKey {
        ClusterCaKey {
            is_proved: false,
            ..proved(byte)
        }
    }

    fn cluster(namespace: &str) -> ObjectKey {
        ObjectKey::new(namespace, "prod-1")
    }

    fn neighbor() -> ObjectKey {
        ObjectKey::new("a", "prod-2")
    }

    #[test]
    fn clusters_with_the_same_ca_private_key_stop_each_other() {
        for other in [cluster("b"), neighbor()] {
            let keys = CaKeys::default();
            let (mut one, mut two) = (keys.holder(cluster("a")), keys.holder(other.clone()));

            assert_eq!(one.hold(Some(proved(1))), None);
            assert_eq!(two.hold(Some(proved(1))), Some(cluster("a")));
            assert_eq!(one.changed().now_or_never(), Some(()));
            assert_eq!(one.hold(Some(proved(1))), Some(other));

            drop(two);
            assert_eq!(one.changed().now_or_never(), Some(()));
            assert_eq!(one.hold(Some(proved(1))), None);
        }
    }

    #[test]
    fn a_claim_with_a_foreign_ca_certificate_stops_only_its_cluster() {
        for tenant in [cluster("b"), neighbor()] {
            let keys = CaKeys::default();
            let (mut victim, mut tenant) = (keys.holder(cluster("a")), keys.holder(tenant));
            victim.hold(Some(proved(1)));

            assert_eq!(tenant.hold(Some(shown(1))), Some(cluster("a")));

            assert_eq!(victim.changed().now_or_never(), None);
            assert_eq!(victim.hold(Some(proved(1))), None);
        }
    }

    #[test]
    fn a_cluster_without_the_private_key_does_not_stop_its_owner() {
        let keys = CaKeys::default();
        let (mut tenant, mut victim) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        assert_eq!(tenant.hold(Some(shown(1))), None);

        assert_eq!(victim.hold(Some(proved(1))), None);

        assert_eq!(tenant.changed().now_or_never(), Some(()));
        assert_eq!(tenant.hold(Some(shown(1))), Some(cluster("b")));
    }

    #[test]
    fn clusters_without_the_private_key_do_not_stop_each_other() {
        for other in [cluster("b"), neighbor()] {
            let keys = CaKeys::default();
            let (mut one, mut two) = (keys.holder(cluster("a")), keys.holder(other));
            assert_eq!(one.hold(Some(shown(1))), None);

            assert_eq!(two.hold(Some(shown(1))), None);

            assert_eq!(one.changed().now_or_never(), None);
            assert_eq!(one.hold(Some(shown(1))), None);
        }
    }

    #[test]
    fn a_recreated_cluster_keeps_its_ca_key_if_the_old_one_stops() {
        let keys = CaKeys::default();
        let (former, mut one) = (keys.holder(cluster("a")), keys.holder(cluster("a")));
        one.hold(Some(proved(1)));

        drop(former);

        assert_eq!(one.changed().now_or_never(), Some(()));
        one.hold(Some(proved(1)));
        let is_held = keys
            .0
            .read(|keys| keys.clusters.contains_key(&cluster("a")));
        assert!(is_held);
    }

    /// Counts the times that a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether `change` wakes this holder (1 or 0), and whether its result changes.
    fn woken(holder: &mut CaKeyHolder, change: impl FnOnce()) -> (usize, bool) {
        let counted = Arc::new(Wakes::default());
        let waker = Waker::from(counted.clone());
        let mut context = Context::from_waker(&waker);
        let mut changed = pin!(holder.changed());
        assert!(changed.as_mut().poll(&mut context).is_pending());
        change();
        let is_changed = changed.as_mut().poll(&mut context).is_ready();
        (counted.0.load(Ordering::Relaxed), is_changed)
    }

    #[test]
    fn frequent_ca_changes_of_one_tenant_do_not_wake_others() {
        let keys = CaKeys::default();
        let (mut one, mut busy) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        one.hold(Some(proved(1)));

        let changes = || {
            for byte in 2..10 {
                busy.hold(Some(proved(byte)));
            }
        };
        assert_eq!(woken(&mut one, changes), (0, false));

        let same = || drop(busy.hold(Some(proved(1))));
        assert_eq!(woken(&mut one, same), (1, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_changes_constantly_wakes_another_holder_once_a_second() {
        let keys = CaKeys::default();
        let [mut one, mut next, mut busy] =
            ["a", "b", "c"].map(|namespace| keys.holder(cluster(namespace)));
        next.hold(Some(proved(1)));
        busy.hold(Some(proved(1)));
        assert_eq!(one.hold(Some(proved(1))), Some(cluster("b")));
        let counted = Arc::new(Wakes::default());
        let waker = Waker::from(counted.clone());
        let mut context = Context::from_waker(&waker);
        let mut changed = pin!(one.changed());

        for _ in 0..100 {
            assert!(changed.as_mut().poll(&mut context).is_pending());
            busy.hold(None);
            busy.hold(Some(proved(1)));
        }
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);

        next.hold(None);
        assert!(changed.as_mut().poll(&mut context).is_pending());
        let begun = tokio::time::Instant::now();
        changed.await;
        let waited = begun.elapsed();
        assert!((BETWEEN_CHECKS..2 * BETWEEN_CHECKS).contains(&waited));
    }

    #[test]
    fn a_ca_key_change_among_many_clusters_visits_few_clusters() {
        for is_same in [true, false] {
            let keys = CaKeys::default();
            let held = |number: u16| {
                let byte = if is_same { 0 } else { number };
                ClusterCaKey {
                    digest: KeyDigest::of(&byte.to_be_bytes()),
                    is_proved: true,
                }
            };
            let mut holders: Vec<_> = (0..1000)
                .map(|number| {
                    let mut holder = keys.holder(cluster(&number.to_string()));
                    holder.hold(Some(held(number)));
                    holder
                })
                .collect();
            let one = &mut holders[500];

            let visited = most_visited(|| {
                one.hold(None);
                one.hold(Some(proved(1)));
                one.hold(Some(held(500)));
                assert!(one.is_current());
            });

            assert!(visited[&Lock::CaKeys] <= 2, "{visited:?}");
        }
    }

    #[test]
    fn a_change_among_many_clusters_with_one_ca_key_affects_few() {
        let keys = CaKeys::default();
        let mut holders: Vec<_> = (0..100)
            .map(|number| keys.holder(cluster(&number.to_string())))
            .collect();
        for _ in 0..2 {
            for holder in &mut holders {
                holder.hold(Some(proved(1)));
            }
        }

        let mut busy = holders.swap_remove(50);
        busy.hold(None);

        let changed = holders.iter().filter(|holder| !holder.is_current());
        assert_eq!(changed.count(), 1);
    }

    #[test]
    fn a_ca_key_without_clusters_uses_no_memory() {
        let keys = CaKeys::default();
        let (mut one, mut two) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        one.hold(Some(proved(1)));
        two.hold(Some(shown(1)));
        one.hold(Some(shown(2)));
        drop(two);
        one.hold(None);

        assert!(
            keys.0
                .read(|keys| keys.digests.is_empty() && keys.clusters.is_empty())
        );
    }
}
