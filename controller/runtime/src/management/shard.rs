//! Shards: each replica that holds the Lease of a shard serves the Clusters of that shard.
//!
//! A Cluster belongs to a shard by rendezvous hashing of its UID, so that another number of shards moves
//! as few Clusters as possible. All replicas compute the same, without a word between them.

use node_attestation_core::crd::KubeletAuthentication;
use sha2::{Digest as _, Sha256};

use super::single_object::Observed;
use crate::capi::Cluster;

/// The limit of shards: each replica reads each Lease every two seconds.
pub const MAX_SHARDS: u32 = 64;

/// One of the equal parts that the served Clusters are divided into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// All shards of a number of them; there is at least one.
    pub(super) fn all(count: u32) -> impl Iterator<Item = Self> {
        let count = count.max(1);
        (0..count).map(move |index| Self { index, count })
    }

    /// The shard that every Cluster belongs to.
    pub(super) const ONLY: Self = Self { index: 0, count: 1 };

    /// The name of its Lease; `base` itself where there is only one.
    pub(super) fn lease_name(self, base: &str) -> String {
        if self == Self::ONLY {
            base.to_owned()
        } else {
            format!("{base}-{}", self.index)
        }
    }

    /// Whether the Cluster with this UID belongs to this shard.
    pub(super) fn has_uid(self, uid: &str) -> bool {
        let weight = |index: &u32| {
            let digest = Sha256::new()
                .chain_update(index.to_be_bytes())
                .chain_update(uid);
            <[u8; 32]>::from(digest.finalize())
        };
        self == Self::ONLY || (0..self.count).max_by_key(weight) == Some(self.index)
    }

    /// Whether a cluster belongs to this shard: by the UID of its Cluster, and by that of its
    /// `KubeletAuthentication` while there is none. Where several shards are, one of which nothing is known yet
    /// belongs to no shard.
    pub(super) fn has(
        self,
        cluster: &Observed<Cluster>,
        authentication: &KubeletAuthentication,
    ) -> bool {
        let uid = match cluster {
            Observed::Unknown => return self == Self::ONLY,
            Observed::Absent => authentication.metadata.uid.as_deref().unwrap_or_default(),
            Observed::Present(cluster) => &cluster.uid,
        };
        self.has_uid(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of the shard that a Cluster belongs to, of so many.
    fn index(uid: &str, count: u32) -> u32 {
        let mut shards = Shard::all(count).filter(|shard| shard.has_uid(uid));
        let index = shards.next().unwrap().index;
        assert_eq!(shards.next(), None, "{uid} belongs to one shard");
        index
    }

    fn uids() -> impl Iterator<Item = String> {
        (0..1000).map(|number| format!("0d5a7a1c-6a3c-4b7e-9d5c-{number:012}"))
    }

    #[test]
    fn every_cluster_belongs_to_one_shard_and_shards_are_even() {
        let mut sizes = [0_u32; 4];
        for uid in uids() {
            sizes[usize::try_from(index(&uid, 4)).unwrap()] += 1;
        }

        assert!(
            sizes.iter().all(|size| (200..300).contains(size)),
            "{sizes:?}"
        );
    }

    #[test]
    fn another_shard_takes_a_part_of_each_and_moves_no_other_cluster() {
        let mut moved = 0;
        for uid in uids() {
            let (before, after) = (index(&uid, 4), index(&uid, 5));
            if before != after {
                assert_eq!(after, 4, "{uid}");
                moved += 1;
            }
        }

        assert!((150..250).contains(&moved), "{moved}");
    }

    #[test]
    fn the_shard_of_a_uid_is_the_same_in_every_version() {
        let shards: Vec<u32> = uids().take(8).map(|uid| index(&uid, 4)).collect();

        assert_eq!(shards, [3, 1, 2, 3, 1, 2, 3, 3]);
    }

    #[test]
    fn the_lease_of_the_only_shard_has_the_name_of_a_controller_without_shards() {
        assert_eq!(Shard::ONLY.lease_name("controller"), "controller");
        let names: Vec<String> = Shard::all(2)
            .map(|shard| shard.lease_name("controller"))
            .collect();
        assert_eq!(names, ["controller-0", "controller-1"]);
    }
}
