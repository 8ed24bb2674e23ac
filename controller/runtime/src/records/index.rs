//! The kept records of each namespace, and the limits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use crate::capi::ObjectKey;

/// The limits for the records of one namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) records: usize,
    /// The limit for the clusters that have records.
    pub(super) clusters: usize,
}

/// The records of ten clusters of the largest size that Kubernetes supports, and ten times the default of
/// `--max-clusters-per-namespace`.
pub(super) const LIMITS: Limits = Limits {
    records: 50_000,
    clusters: 10_000,
};

/// The cluster of each record. Only the watch uses it, so it has no lock.
#[derive(Debug)]
pub(super) struct Index {
    limits: Limits,
    namespaces: BTreeMap<String, OfNamespace>,
    digest: RandomState,
}

#[derive(Debug, Default)]
struct OfNamespace {
    /// The cluster of each kept record.
    kept: BTreeMap<Box<str>, Arc<str>>,
    /// The number of kept records of each cluster.
    clusters: BTreeMap<Arc<str>, usize>,
    /// The digests of the names of the records beyond the limits. A tenant can create any number of records, so only
    /// these 8 bytes are kept.
    left_out: BTreeSet<u64>,
}

/// The result of [`Index::put`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Put {
    /// Whether the record is within the limits.
    pub(super) is_kept: bool,
    /// The previous cluster of the record, if it is different.
    pub(super) former: Option<ObjectKey>,
}

impl Index {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            namespaces: BTreeMap::new(),
            digest: RandomState::new(),
        }
    }

    /// The cluster of a kept record.
    pub(super) fn cluster_of(&self, namespace: &str, name: &str) -> Option<ObjectKey> {
        let cluster = self.namespaces.get(namespace)?.kept.get(name)?;
        Some(ObjectKey::new(namespace, &**cluster))
    }

    /// Adds the record of this cluster, unless the namespace has reached a limit.
    pub(super) fn put(&mut self, cluster: &ObjectKey, name: &str) -> Put {
        let digest = self.digest.hash_one(name);
        let namespace = self.namespaces.entry(cluster.namespace.clone());
        let namespace = namespace.or_default();
        let known = namespace.kept.get(name);
        if known.is_some_and(|known| **known == *cluster.name) {
            return Put {
                is_kept: true,
                former: None,
            };
        }
        let former = namespace.remove(name);
        let former = former.map(|former| ObjectKey::new(cluster.namespace.as_str(), &*former));
        let is_known = namespace.clusters.contains_key(&*cluster.name);
        let is_kept = namespace.kept.len() < self.limits.records
            && (is_known || namespace.clusters.len() < self.limits.clusters);
        if !is_kept {
            namespace.left_out.insert(digest);
            return Put { is_kept, former };
        }
        namespace.left_out.remove(&digest);
        let own = namespace.clusters.get_key_value(&*cluster.name);
        let own = own.map_or_else(|| Arc::from(cluster.name.as_str()), |(own, _)| own.clone());
        *namespace.clusters.entry(own.clone()).or_default() += 1;
        namespace.kept.insert(name.into(), own);
        Put { is_kept, former }
    }

    /// Removes a record. Returns its cluster if it was kept.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<ObjectKey> {
        let of_namespace = self.namespaces.get_mut(namespace)?;
        let cluster = of_namespace.remove(name);
        if cluster.is_none() {
            of_namespace.left_out.remove(&self.digest.hash_one(name));
        }
        if of_namespace.kept.is_empty() && of_namespace.left_out.is_empty() {
            self.namespaces.remove(namespace);
        }
        cluster.map(|cluster| ObjectKey::new(namespace, &*cluster))
    }

    /// The number of records of this namespace that are not kept.
    pub(super) fn left_out(&self, namespace: &str) -> usize {
        let namespace = self.namespaces.get(namespace);
        namespace.map_or(0, |namespace| namespace.left_out.len())
    }

    /// The namespaces with records that are not kept, each with their number.
    pub(super) fn over_the_limit(&self) -> impl Iterator<Item = (&str, usize)> {
        let namespaces = self.namespaces.iter();
        let counts = namespaces.map(|(namespace, one)| (namespace.as_str(), one.left_out.len()));
        counts.filter(|(_, left_out)| *left_out > 0)
    }

    /// Whether some records of this namespace are not kept although it now has few enough. A list finds them.
    pub(super) fn is_list_due(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|one| {
            let all = one.kept.len().saturating_add(one.left_out.len());
            !one.left_out.is_empty() && all <= self.limits.records
        })
    }
}

impl OfNamespace {
    /// Removes a kept record, and returns its cluster.
    fn remove(&mut self, name: &str) -> Option<Arc<str>> {
        let cluster = self.kept.remove(name)?;
        if let Some(count) = self.clusters.get_mut(&cluster) {
            *count -= 1;
            if *count == 0 {
                self.clusters.remove(&cluster);
            }
        }
        Some(cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits {
        records: 3,
        clusters: 2,
    };

    fn key(namespace: &str, cluster: &str) -> ObjectKey {
        ObjectKey::new(namespace, cluster)
    }

    fn kept() -> Put {
        Put {
            is_kept: true,
            former: None,
        }
    }

    fn left_out() -> Put {
        Put {
            is_kept: false,
            former: None,
        }
    }

    #[test]
    fn the_records_of_a_namespace_are_limited_and_take_no_place_of_another() {
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
            assert_eq!(index.put(&key, "3"), Put { is_kept, former });
            assert_eq!(index.cluster_of("a", "3"), is_kept.then_some(key));
        }
    }

    #[test]
    fn a_list_is_due_when_all_records_are_within_the_limits_again() {
        let mut index = Index::new(SMALL);
        for name in ["1", "2", "3", "4"] {
            index.put(&key("a", "c"), name);
        }
        assert!(!index.is_list_due("a"));

        index.remove("a", "1");
        assert!(index.is_list_due("a"));

        index.put(&key("a", "c"), "4");
        assert!(!index.is_list_due("a"));
        assert!(!index.is_list_due("b"));
    }

    #[test]
    fn a_namespace_without_records_takes_no_memory() {
        let mut index = Index::new(SMALL);
        index.put(&key("a", "c"), "1");
        index.remove("a", "1");
        index.remove("b", "1");

        assert!(index.namespaces.is_empty());
    }
}
