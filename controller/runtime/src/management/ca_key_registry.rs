//! The CA keys of the served clusters.

use std::collections::BTreeMap;

use node_attestation_core::identifiers::KeyDigest;
use tokio::sync::watch;

use crate::capi::{ClusterCa, ObjectKey};

/// The CA keys of all clusters of this controller.
///
/// Certificates of two clusters with the same CA key are valid in both. So a cluster is not served while another
/// cluster has proved that it has the same key.
///
/// Only a Secret with the private key is a proof. A CA certificate is public: a tenant who uses another tenant's
/// certificate stops only their own cluster. Two clusters with the private key stop each other; an owner of a CA key
/// can issue certificates for its cluster anyway. Neither creation time nor namespace matters.
///
/// Clusters without the private key do not stop each other. An external signer identifies the cluster of each CA, and
/// refuses to sign for another cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct CaKeys {
    keys: watch::Sender<BTreeMap<ObjectKey, CaKey>>,
}

/// The key of a cluster's CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CaKey {
    digest: KeyDigest,
    /// Whether the Secret contains the private key.
    is_proved: bool,
}

/// The entry of one cluster. Dropping the holder removes the entry.
#[derive(Debug)]
pub(super) struct CaKeyHolder {
    all: CaKeys,
    cluster: ObjectKey,
    changes: watch::Receiver<BTreeMap<ObjectKey, CaKey>>,
    key: Option<CaKey>,
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
}

impl CaKeys {
    pub(super) fn holder(&self, cluster: ObjectKey) -> CaKeyHolder {
        CaKeyHolder {
            all: self.clone(),
            cluster,
            changes: self.keys.subscribe(),
            key: None,
            told: None,
        }
    }

    fn set(&self, cluster: &ObjectKey, key: Option<CaKey>) {
        self.keys.send_if_modified(|keys| {
            let former = match key {
                Some(key) => keys.insert(cluster.clone(), key),
                None => keys.remove(cluster),
            };
            former != key
        });
    }
}

/// Another cluster that has proved that it has the same CA key.
fn other(keys: &BTreeMap<ObjectKey, CaKey>, cluster: &ObjectKey) -> Option<ObjectKey> {
    let own = keys.get(cluster)?;
    let mut others = keys
        .iter()
        .filter(|(other, key)| key.is_proved && key.digest == own.digest && *other != cluster);
    others.next().map(|(other, _)| other.clone())
}

impl CaKeyHolder {
    /// Sets the cluster's key. Returns another cluster that has proved that it has the same key.
    pub(super) fn hold(&mut self, key: Option<CaKey>) -> Option<ObjectKey> {
        self.key = key;
        self.all.set(&self.cluster, key);
        self.told = other(&self.changes.borrow_and_update(), &self.cluster);
        self.told.clone()
    }

    /// Waits until [`Self::hold`] would return a different result. Changes of unrelated keys do not wake this cluster.
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

    /// Whether the last result is still valid. This includes the cluster's own entry, because a predecessor of this
    /// holder can be dropped late.
    fn is_as_told(&self) -> bool {
        let keys = self.changes.borrow();
        let own = keys.get(&self.cluster).copied();
        own == self.key && other(&keys, &self.cluster) == self.told
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

    fn proved(byte: u8) -> CaKey {
        CaKey {
            digest: KeyDigest::of(&[byte]),
            is_proved: true,
        }
    }

    /// The key of a certificate, without the private key.
    fn shown(byte: u8) -> CaKey {
        CaKey {
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
    fn clusters_with_one_private_key_stop_each_other() {
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
    fn a_cluster_that_shows_anothers_ca_certificate_stops_only_itself() {
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
    fn an_older_claim_without_the_private_key_does_not_displace_a_proof() {
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
    fn a_recreated_cluster_keeps_its_ca_key_when_the_old_holder_ends() {
        let keys = CaKeys::default();
        let (former, mut one) = (keys.holder(cluster("a")), keys.holder(cluster("a")));
        one.hold(Some(proved(1)));

        drop(former);

        assert_eq!(one.changed().now_or_never(), Some(()));
        one.hold(Some(proved(1)));
        assert!(keys.keys.borrow().contains_key(&cluster("a")));
    }

    #[test]
    fn frequent_ca_changes_of_one_tenant_do_not_notify_others() {
        let keys = CaKeys::default();
        let (mut one, mut busy) = (keys.holder(cluster("a")), keys.holder(cluster("b")));
        one.hold(Some(proved(1)));

        for byte in 2..10 {
            busy.hold(Some(proved(byte)));
            assert_eq!(one.changed().now_or_never(), None, "{byte}");
        }
    }
}
