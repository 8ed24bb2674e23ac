//! The Clusters, Machines and pools that cannot be read, by cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Places, Stored};
use crate::capi::objects::{Cluster, Watched as _};
use crate::object_key::ObjectKey;
use crate::shared::page;

/// The kind and the key of an object.
type Member = (&'static str, ObjectKey);

/// The objects that cannot be read. Each has one entry here, like an object that can be read.
#[derive(Debug, Default)]
pub(super) struct UnreadableMembers {
    /// The cluster of each object. Its name is empty if the cluster is unknown.
    clusters: BTreeMap<Member, ObjectKey>,
    /// The kinds and the names of each cluster's objects.
    members: BTreeMap<ObjectKey, BTreeSet<(&'static str, String)>>,
}

/// The first object of a cluster that cannot be read, and the number of all such objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct Unread {
    pub(in crate::capi) kind: &'static str,
    pub(in crate::capi) name: String,
    pub(in crate::capi) count: usize,
}

impl fmt::Display for Unread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, count } = self;
        match count.saturating_sub(1) {
            0 => write!(
                formatter,
                "cannot read {kind} {name} (the log contains the cause)"
            ),
            others => write!(
                formatter,
                "cannot read {kind} {name} and {others} more (the log contains the causes)"
            ),
        }
    }
}

impl UnreadableMembers {
    /// Adds an object of this cluster.
    pub(super) fn put(&mut self, kind: &'static str, key: &ObjectKey, cluster: ObjectKey) {
        self.remove(kind, key);
        let members = self.members.entry(cluster.clone()).or_default();
        members.insert((kind, key.name.clone()));
        self.clusters.insert((kind, key.clone()), cluster);
    }

    pub(super) fn remove(&mut self, kind: &'static str, key: &ObjectKey) {
        if self.clusters.is_empty() {
            return;
        }
        let Some(cluster) = self.clusters.remove(&(kind, key.clone())) else {
            return;
        };
        if let Some(members) = self.members.get_mut(&cluster) {
            members.remove(&(kind, key.name.clone()));
            if members.is_empty() {
                self.members.remove(&cluster);
            }
        }
    }

    /// The objects of this cluster, and those of its namespace whose cluster is unknown.
    pub(super) fn of(&self, cluster: &ObjectKey) -> Option<Unread> {
        let unknown = ObjectKey::new(cluster.namespace.as_str(), "");
        let groups = [cluster, &unknown].into_iter();
        let groups: Vec<_> = groups.filter_map(|key| self.members.get(key)).collect();
        let &(kind, ref name) = groups.first()?.first()?;
        Some(Unread {
            kind,
            name: name.clone(),
            count: groups.iter().map(|members| members.len()).sum(),
        })
    }

    fn contains(&self, kind: &'static str, key: &ObjectKey) -> bool {
        !self.clusters.is_empty() && self.clusters.contains_key(&(kind, key.clone()))
    }

    /// The next objects after this one, sorted.
    fn after(&self, after: Option<&Member>) -> Vec<Member> {
        let next = page(&self.clusters, after);
        next.map(|(member, _)| member.clone()).collect()
    }
}

impl super::Store {
    /// The objects of this cluster that cannot be read.
    pub(in crate::capi) fn unreadable_members(&self, cluster: &ObjectKey) -> Option<Unread> {
        self.0.read(|places| places.unreadable.of(cluster))
    }

    /// Whether the last version of this Cluster cannot be read.
    pub(in crate::capi) fn has_unreadable(&self, cluster: &ObjectKey) -> bool {
        let has = |places: &Places| places.unreadable.contains(Cluster::KIND, cluster);
        self.0.read(has)
    }

    /// Removes the objects of a kind that are not in `listed`.
    pub(super) fn retain_unreadable<W: Stored>(&self, listed: &BTreeSet<ObjectKey>) {
        let mut last = None;
        loop {
            let next = self.0.read(|places| places.unreadable.after(last.as_ref()));
            for &(kind, ref key) in &next {
                if kind == W::KIND && !listed.contains(key) {
                    self.0.write(|places| places.unreadable.remove(kind, key));
                }
            }
            last = next.into_iter().next_back();
            if last.is_none() {
                return;
            }
        }
    }
}
