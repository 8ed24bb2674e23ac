//! The stored records in each namespace, and their limits.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use crate::capi::ObjectKey;
use crate::memory::KeptLimit;

/// The limits on records.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexLimits {
    /// The maximum number of records in one namespace.
    pub(super) records: usize,
    /// The maximum number of clusters with records in one namespace.
    pub(super) clusters: usize,
    /// The limit on the records in all namespaces together.
    pub(super) all: KeptLimit,
}

/// The maximum number of records in one namespace: ten clusters of the largest size that Kubernetes supports.
pub(super) const RECORDS: usize = 50_000;

/// The maximum number of clusters with records in one namespace: ten times the default of
/// `--max-clusters-per-namespace`.
pub(super) const CLUSTERS: usize = 10_000;

/// The container's memory divided by this number is the limit for all records: 512 MiB of 1 GiB.
const PART: usize = 2;

/// The memory for a record, including the objects of its machine.
const RECORD_LEN: usize = 2048;

impl IndexLimits {
    /// The limits of this process.
    pub(super) fn of_process() -> Self {
        Self {
            records: RECORDS,
            clusters: CLUSTERS,
            all: KeptLimit::of_memory(PART, RECORD_LEN),
        }
    }
}

/// The cluster to which each record belongs. The index has no lock, because only the watch uses it.
#[derive(Debug)]
pub(super) struct Index {
    limits: IndexLimits,
    namespaces: BTreeMap<String, OfNamespace>,
    /// The number of kept records in all namespaces.
    kept: usize,
    /// The number of kept records that were also in the previous index.
    kept_again: usize,
    digest: RandomState,
}

#[derive(Debug, Default)]
struct OfNamespace {
    /// The cluster of each kept record.
    kept: BTreeMap<Box<str>, Arc<str>>,
    /// The number of kept records that were also in the previous index.
    kept_again: usize,
    /// The number of kept records for each cluster.
    clusters: BTreeMap<Arc<str>, usize>,
    /// For each record that exceeds the limits, the digest of its name, with the digest of its cluster. Only these 16
    /// bytes are kept, because a tenant can create any number of records.
    left_out: BTreeMap<u64, u64>,
    /// For each digest of a cluster's name, the number of the cluster's records. Includes the records that exceed the
    /// limits.
    all_clusters: BTreeMap<u64, usize>,
}

/// The records that were kept before a list. Space is reserved for them during the list.
#[derive(Debug, Clone, Copy, Default)]
struct Reserved {
    /// Whether the record was already kept before the list.
    is_kept: bool,
    /// The number of places for other records in the namespace.
    of_namespace: usize,
    /// The number of places for other records in all namespaces.
    all: usize,
}

/// The result of [`Index::put`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecordPut {
    /// Whether the limits allow keeping the record.
    pub(super) is_kept: bool,
    /// The previous cluster of the record, if it is different.
    pub(super) former: Option<ObjectKey>,
}

impl Index {
    pub(super) fn new(limits: IndexLimits) -> Self {
        Self {
            limits,
            namespaces: BTreeMap::new(),
            kept: 0,
            kept_again: 0,
            digest: RandomState::new(),
        }
    }

    /// The cluster to which a kept record belongs.
    pub(super) fn cluster_of(&self, namespace: &str, name: &str) -> Option<ObjectKey> {
        let cluster = self.namespaces.get(namespace)?.kept.get(name)?;
        Some(ObjectKey::new(namespace, &**cluster))
    }

    /// Adds a record for this cluster, unless the namespace has reached a limit.
    pub(super) fn put(&mut self, cluster: &ObjectKey, name: &str) -> RecordPut {
        self.put_with(cluster, name, Reserved::default())
    }

    /// Adds a listed record. The records in `before` remain within the limits, regardless of the order of the list. New
    /// records in other namespaces never take their places.
    pub(super) fn put_listed(
        &mut self,
        cluster: &ObjectKey,
        name: &str,
        before: &Self,
    ) -> RecordPut {
        let own = self.namespaces.get(&cluster.namespace);
        let is_new = own.is_none_or(|own| !own.kept.contains_key(name));
        let known = before.cluster_of(&cluster.namespace, name);
        let is_kept = is_new && known.as_ref() == Some(cluster);
        let kept_before = before.namespaces.get(&cluster.namespace);
        let kept_before = kept_before.map_or(0, |one| one.kept.len());
        let kept_again = own.map_or(0, |own| own.kept_again) + usize::from(is_kept);
        let reserved = Reserved {
            is_kept,
            of_namespace: kept_before.saturating_sub(kept_again),
            all: before
                .kept
                .saturating_sub(self.kept_again + usize::from(is_kept)),
        };
        self.put_with(cluster, name, reserved)
    }

    fn put_with(&mut self, cluster: &ObjectKey, name: &str, reserved: Reserved) -> RecordPut {
        let is_new = !self.namespaces.contains_key(&cluster.namespace);
        let namespaces = self.namespaces.len() + usize::from(is_new);
        let namespace = self.namespaces.entry(cluster.namespace.clone());
        let namespace = namespace.or_default();
        let known = namespace.kept.get(name);
        if known.is_some_and(|known| **known == *cluster.name) {
            return RecordPut {
                is_kept: true,
                former: None,
            };
        }
        let former = namespace.remove(name, &self.digest);
        self.kept -= usize::from(former.is_some());
        let former = former.map(|former| ObjectKey::new(cluster.namespace.as_str(), &*former));
        let digest_of_cluster = self.digest.hash_one(&*cluster.name);
        *namespace.all_clusters.entry(digest_of_cluster).or_default() += 1;
        let is_known = namespace.clusters.contains_key(&*cluster.name);
        let own = namespace.kept.len() + reserved.of_namespace;
        let used = (own, self.kept + reserved.all);
        let is_kept = reserved.is_kept
            || own < self.limits.records
                && self.limits.all.room(used, namespaces) > 0
                && (is_known || namespace.clusters.len() < self.limits.clusters);
        if !is_kept {
            let digest = self.digest.hash_one(name);
            namespace.left_out.insert(digest, digest_of_cluster);
            return RecordPut { is_kept, former };
        }
        let own = namespace.clusters.get_key_value(&*cluster.name);
        let own = own.map_or_else(|| Arc::from(cluster.name.as_str()), |(own, _)| own.clone());
        *namespace.clusters.entry(own.clone()).or_default() += 1;
        namespace.kept.insert(name.into(), own);
        namespace.kept_again += usize::from(reserved.is_kept);
        self.kept += 1;
        self.kept_again += usize::from(reserved.is_kept);
        RecordPut { is_kept, former }
    }

    /// Removes a record. Returns its cluster if it was kept.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<ObjectKey> {
        let of_namespace = self.namespaces.get_mut(namespace)?;
        let cluster = of_namespace.remove(name, &self.digest);
        self.kept -= usize::from(cluster.is_some());
        if of_namespace.kept.is_empty() && of_namespace.left_out.is_empty() {
            self.namespaces.remove(namespace);
        }
        cluster.map(|cluster| ObjectKey::new(namespace, &*cluster))
    }

    /// The number of records in this namespace that are not kept.
    pub(super) fn left_out(&self, namespace: &str) -> usize {
        let namespace = self.namespaces.get(namespace);
        namespace.map_or(0, |namespace| namespace.left_out.len())
    }

    /// The namespaces with records that are not kept, with the number of these records.
    pub(super) fn over_the_limit(&self) -> impl Iterator<Item = (&str, usize)> {
        let namespaces = self.namespaces.iter();
        let counts = namespaces.map(|(namespace, one)| (namespace.as_str(), one.left_out.len()));
        counts.filter(|(_, left_out)| *left_out > 0)
    }

    /// The namespaces with records that are not kept although there is now space for all of them. This can occur
    /// because the records in one namespace can use space that another namespace needs.
    pub(super) fn due(&self) -> impl Iterator<Item = &str> {
        let is_due = |one: &OfNamespace| {
            let (kept, left_out) = (one.kept.len(), one.left_out.len());
            let IndexLimits {
                records,
                clusters,
                all,
            } = self.limits;
            if left_out == 0
                || kept.saturating_add(left_out) > records
                || one.all_clusters.len() > clusters
            {
                return false;
            }
            left_out <= all.room((kept, self.kept), self.namespaces.len())
        };
        let namespaces = self.namespaces.iter();
        let due = namespaces.filter(move |(_, one)| is_due(one));
        due.map(|(namespace, _)| namespace.as_str())
    }

    #[cfg(test)]
    fn is_list_due(&self) -> bool {
        self.due().next().is_some()
    }
}

impl OfNamespace {
    /// Removes a record. Returns its cluster if it was kept.
    fn remove(&mut self, name: &str, digest: &RandomState) -> Option<Arc<str>> {
        let Some(cluster) = self.kept.remove(name) else {
            let cluster = self.left_out.remove(&digest.hash_one(name));
            if let Some(cluster) = cluster {
                self.uncount(cluster);
            }
            return None;
        };
        self.uncount(digest.hash_one(&*cluster));
        if let Some(count) = self.clusters.get_mut(&cluster) {
            *count -= 1;
            if *count == 0 {
                self.clusters.remove(&cluster);
            }
        }
        Some(cluster)
    }

    fn uncount(&mut self, cluster: u64) {
        if let Some(count) = self.all_clusters.get_mut(&cluster) {
            *count -= 1;
            if *count == 0 {
                self.all_clusters.remove(&cluster);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: IndexLimits = IndexLimits {
        records: 3,
        clusters: 2,
        all: KeptLimit::new(1000),
    };

    fn key(namespace: &str, cluster: &str) -> ObjectKey {
        ObjectKey::new(namespace, cluster)
    }

    fn kept() -> RecordPut {
        RecordPut {
            is_kept: true,
            former: None,
        }
    }

    fn left_out() -> RecordPut {
        RecordPut {
            is_kept: false,
            former: None,
        }
    }

    #[test]
    fn the_records_of_each_namespace_are_limited() {
        let mut index = Index::new(SMALL);
        for name in ["1", "2", "3"] {
            assert_eq!(index.put(&key("a", "c"), name), kept());
        }

        for _ in 0..2 {
            assert_eq!(index.put(&key("a", "c"), "4"), left_out());
        }
        assert_eq!(index.put(&key("a", "c"), "3"), kept());
        assert_eq!(index.put(&key("b", "c"), "4"), kept());
        assert_eq!(index.over_the_limit().collect::<Vec<_>>(), [("a", 1)]);
        assert_eq!(index.cluster_of("a", "4"), None);

        assert_eq!(index.remove("a", "4"), None);
        assert_eq!(index.left_out("a"), 0);
        assert_eq!(index.remove("a", "1"), Some(key("a", "c")));
        assert_eq!(index.put(&key("a", "c"), "4"), kept());
    }

    #[test]
    fn the_clusters_with_records_in_a_namespace_are_limited() {
        let mut index = Index::new(SMALL);
        assert_eq!(index.put(&key("a", "c1"), "1"), kept());
        assert_eq!(index.put(&key("a", "c2"), "2"), kept());

        assert_eq!(index.put(&key("a", "c3"), "3"), left_out());
        assert_eq!(index.put(&key("a", "c2"), "4"), kept());

        index.remove("a", "1");
        assert_eq!(index.put(&key("a", "c3"), "3"), kept());
        assert_eq!(index.left_out("a"), 0);
    }

    #[test]
    fn a_record_that_changes_its_cluster_leaves_the_previous_one() {
        let mut index = Index::new(SMALL);
        index.put(&key("a", "c1"), "1");
        index.put(&key("a", "c2"), "2");
        index.put(&key("a", "c2"), "3");

        for (cluster, is_kept) in [("c1", true), ("c2", true), ("c3", false)] {
            let former = index.cluster_of("a", "3");
            let key = key("a", cluster);
            assert_eq!(index.put(&key, "3"), RecordPut { is_kept, former });
            assert_eq!(index.cluster_of("a", "3"), is_kept.then_some(key));
        }
    }

    #[test]
    fn records_are_listed_again_once_all_are_within_the_limits() {
        let mut index = Index::new(SMALL);
        for name in ["1", "2", "3", "4"] {
            index.put(&key("a", "c"), name);
        }
        assert!(!index.is_list_due());

        index.remove("a", "1");
        assert!(index.is_list_due());

        index.put(&key("a", "c"), "4");
        assert!(!index.is_list_due());
    }

    #[test]
    fn records_are_not_listed_again_while_they_have_too_many_clusters() {
        let limits = IndexLimits {
            records: 100,
            ..SMALL
        };
        let mut index = Index::new(limits);
        for cluster in ["c1", "c2", "c3", "c4"] {
            for name in ["1", "2"] {
                index.put(&key("a", cluster), &format!("{cluster}.{name}"));
            }
        }
        assert_eq!(index.left_out("a"), 4);

        // After each deletion, there are still more clusters than the limit.
        for name in ["c1.1", "c2.1", "c3.1", "c3.2"] {
            index.remove("a", name);
            assert!(!index.is_list_due(), "{name}");
        }
        index.put(&key("a", "c4"), "c1.2");
        assert!(index.is_list_due(), "c2 and c4 remain");

        // If the cluster of a record is known, the record counts only toward the limit on records.
        let mut index = Index::new(SMALL);
        for name in ["1", "2", "3", "4", "5"] {
            index.put(&key("a", "c"), name);
        }
        index.remove("a", "1");
        assert!(!index.is_list_due());
        index.remove("a", "5");
        assert!(index.is_list_due());
        index.put(&key("a", "c"), "4");
        assert_eq!(index.namespaces["a"].all_clusters.len(), 1);
    }

    #[test]
    fn the_records_of_a_few_namespaces_leave_space_for_another() {
        let limits = IndexLimits {
            records: 100,
            clusters: 100,
            all: KeptLimit::new(64),
        };
        let mut index = Index::new(limits);
        let mut put = |namespace: &str, name: usize| {
            let put = index.put(&key(namespace, "c"), &name.to_string());
            put.is_kept
        };
        let mut kept = |namespace: &str| (0..100).filter(|name| put(namespace, *name)).count();
        assert_eq!(["a", "b", "c", "d"].map(&mut kept), [32, 16, 5, 4]);

        assert!(!index.is_list_due());
        for name in 0..100 {
            index.remove("a", &name.to_string());
            index.remove("b", &name.to_string());
        }
        for name in 32..100 {
            index.remove("c", &name.to_string());
        }
        assert!(index.is_list_due(), "there is room for those of c");
    }

    #[test]
    fn a_list_keeps_known_records_before_new_ones_of_other_namespaces() {
        let limits = IndexLimits {
            records: 100,
            clusters: 100,
            all: KeptLimit::new(64),
        };
        let mut before = Index::new(limits);
        for name in 0..20 {
            assert!(before.put(&key("z", "c"), &name.to_string()).is_kept);
        }
        let mut listed = Index::new(limits);
        let mut kept = |namespace: &str, names: std::ops::Range<usize>| {
            let put = |name: &usize| {
                let put = listed.put_listed(&key(namespace, "c"), &name.to_string(), &before);
                put.is_kept
            };
            names.filter(put).count()
        };

        assert_eq!(kept("a", 0..100), 28);
        assert_eq!(kept("b", 0..100), 5);
        assert_eq!(kept("z", 0..21), 20, "its known ones, and no new one");
        assert_eq!(kept("z", 0..20), 20, "again");
        assert!(listed.kept <= 64);
    }

    #[test]
    fn a_namespace_without_records_uses_no_memory() {
        let mut index = Index::new(SMALL);
        index.put(&key("a", "c"), "1");
        index.remove("a", "1");
        index.remove("b", "1");

        assert!(index.namespaces.is_empty());
        assert_eq!(index.kept, 0);
    }
}
