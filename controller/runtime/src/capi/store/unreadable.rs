//! For each cluster, the Clusters, Machines and pools that cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Places, Stored};
use crate::capi::objects::{Cluster, Watched as _};
use crate::memory::KeptLimit;
use crate::object_key::ObjectKey;
use crate::shared::page;

/// The container's memory divided by this number is the limit for the entries of all objects: 16 MiB of 1 GiB. One
/// namespace uses at most half of this memory, which is enough for more than 10,000 objects.
const PART: usize = 64;

/// The memory for an entry in addition to its names.
const ENTRY_LEN: usize = 320;

/// The kind and the key of an object.
type Member = (&'static str, ObjectKey);

/// The objects that cannot be read. Each of them has one entry, unless the memory of its namespace is exhausted.
#[derive(Debug)]
pub(super) struct UnreadableMembers {
    limit: KeptLimit,
    /// The cluster of each object. Its name is empty if the cluster is unknown.
    clusters: BTreeMap<Member, ObjectKey>,
    /// The kinds and the names of each cluster's objects.
    members: BTreeMap<ObjectKey, BTreeSet<(&'static str, String)>>,
    namespaces: BTreeMap<String, OfNamespace>,
    /// The memory that all entries use.
    all: usize,
    cut: Cut,
    /// Like `cut`, but only since the last complete list of each kind.
    recently_cut: Cut,
    /// For each kind and namespace in `cut`, the objects that have been deleted or read since then.
    left: BTreeMap<&'static str, BTreeMap<String, BTreeSet<String>>>,
}

/// The maximum number of objects of one kind and namespace in [`UnreadableMembers::left`]. The state of other objects
/// is unknown until the next list.
const MAX_LEFT: usize = 100;

/// For each kind, the namespaces with objects that have no entry, because the memory was exhausted. Each namespace is
/// stored with the name of one of these objects. A namespace is kept until the next list, because nothing else
/// identifies these objects.
type Cut = BTreeMap<&'static str, BTreeMap<String, String>>;

/// The entries of a namespace.
#[derive(Debug, Default)]
struct OfNamespace {
    bytes: usize,
    count: usize,
}

/// The first unreadable object of a cluster, and the number of all its unreadable objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capi) struct Unread {
    pub(in crate::capi) kind: &'static str,
    pub(in crate::capi) name: String,
    pub(in crate::capi) count: usize,
    /// Whether some objects in the namespace have no entry. If so, the count is for the whole namespace.
    pub(in crate::capi) is_cut: bool,
}

impl fmt::Display for Unread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            name,
            count,
            is_cut,
        } = self;
        match count.saturating_sub(1) {
            _ if *is_cut && *count == 0 => write!(
                formatter,
                "the controller could not read some objects of the namespace, such as {kind} {name}, and has not \
                 listed these objects again (the log contains the causes)"
            ),
            _ if *is_cut => write!(
                formatter,
                "cannot read at least {count} objects of the namespace, such as {kind} {name} (the log contains the causes)"
            ),
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

/// The memory for an entry. Its names are in both maps.
fn memory(key: &ObjectKey, cluster: &ObjectKey) -> usize {
    let names = 2 * (key.name.len() + cluster.name.len());
    ENTRY_LEN + names + 3 * key.namespace.len()
}

impl Default for UnreadableMembers {
    fn default() -> Self {
        Self::new(KeptLimit::of_memory(PART, 1))
    }
}

impl UnreadableMembers {
    pub(super) const fn new(limit: KeptLimit) -> Self {
        Self {
            limit,
            clusters: BTreeMap::new(),
            members: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            all: 0,
            cut: Cut::new(),
            recently_cut: Cut::new(),
            left: BTreeMap::new(),
        }
    }

    /// Adds an object of this cluster, if there is memory for it. A namespace always has memory for its first object,
    /// and for an object that already has an entry.
    pub(super) fn put(&mut self, kind: &'static str, key: &ObjectKey, cluster: ObjectKey) {
        let (bytes, former) = (memory(key, &cluster), self.take(kind, key));
        let is_new = !self.namespaces.contains_key(&key.namespace);
        let namespaces = self.namespaces.len() + usize::from(is_new);
        let of_namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        let room = self.limit.room((of_namespace.bytes, self.all), namespaces);
        if of_namespace.count > 0 && bytes > room.max(former) {
            for cut in [&mut self.cut, &mut self.recently_cut] {
                let namespaces = cut.entry(kind).or_default();
                namespaces.insert(key.namespace.clone(), key.name.clone());
            }
            let left = self.left.get_mut(kind);
            if let Some(left) = left.and_then(|left| left.get_mut(&key.namespace)) {
                left.remove(&key.name);
            }
            return;
        }
        of_namespace.bytes += bytes;
        of_namespace.count += 1;
        self.all += bytes;
        let members = self.members.entry(cluster.clone()).or_default();
        members.insert((kind, key.name.clone()));
        self.clusters.insert((kind, key.clone()), cluster);
    }

    /// Removes an object. If some objects in the namespace have no entry, their state remains unknown until they change
    /// or are listed. Returns whether the object counted as unreadable.
    pub(super) fn remove(&mut self, kind: &'static str, key: &ObjectKey) -> bool {
        let was_cut = self.leave(kind, key);
        if self.clusters.is_empty() {
            return was_cut;
        }
        let is_known = self.take(kind, key) > 0;
        let of_namespace = self.namespaces.get(&key.namespace);
        if of_namespace.is_some_and(|of_namespace| of_namespace.count == 0) {
            self.namespaces.remove(&key.namespace);
        }
        is_known || was_cut
    }

    /// Records that the object is deleted or readable, if it could be an object without an entry. Returns whether this
    /// is a change.
    fn leave(&mut self, kind: &'static str, key: &ObjectKey) -> bool {
        let namespaces = self.cut.get(kind);
        if !namespaces.is_some_and(|namespaces| namespaces.contains_key(&key.namespace)) {
            return false;
        }
        let left = self.left.entry(kind).or_default();
        let left = left.entry(key.namespace.clone()).or_default();
        left.len() < MAX_LEFT && left.insert(key.name.clone())
    }

    /// Removes the entry of an object, and returns the freed memory.
    fn take(&mut self, kind: &'static str, key: &ObjectKey) -> usize {
        let Some(cluster) = self.clusters.remove(&(kind, key.clone())) else {
            return 0;
        };
        if let Some(members) = self.members.get_mut(&cluster) {
            members.remove(&(kind, key.name.clone()));
            if members.is_empty() {
                self.members.remove(&cluster);
            }
        }
        let bytes = memory(key, &cluster);
        if let Some(of_namespace) = self.namespaces.get_mut(&key.namespace) {
            of_namespace.bytes = of_namespace.bytes.saturating_sub(bytes);
            of_namespace.count = of_namespace.count.saturating_sub(1);
        }
        self.all = self.all.saturating_sub(bytes);
        bytes
    }

    /// After a complete list of this kind, drops the namespaces that were recorded before the list. Returns the
    /// values that the caller drops.
    fn listed(&mut self, kind: &'static str) -> impl Sized + use<> {
        let recently = self.recently_cut.remove(kind).unwrap_or_default();
        let left = self.left.remove(kind);
        (self.cut.insert(kind, recently), left)
    }

    /// The unreadable objects of this cluster, and the unreadable objects in its namespace whose cluster is unknown.
    pub(super) fn of(&self, cluster: &ObjectKey) -> Option<Unread> {
        let unknown = ObjectKey::new(cluster.namespace.as_str(), "");
        let groups = [cluster, &unknown].into_iter();
        let groups: Vec<_> = groups.filter_map(|key| self.members.get(key)).collect();
        let cut = self.cut.iter().find_map(|(kind, namespaces)| {
            let name = namespaces.get(&cluster.namespace)?;
            Some((*kind, name))
        });
        let is_cut = cut.is_some();
        let others = self
            .members
            .range::<ObjectKey, _>(&unknown..)
            .take_while(|(key, _)| key.namespace == cluster.namespace)
            .map(|(_, members)| members);
        // An object without an entry could belong to any cluster in the namespace.
        let others = others.take(usize::from(is_cut));
        let mut named = groups.iter().copied().chain(others);
        let named = named.next().and_then(BTreeSet::first);
        let (kind, name) = named.map(|(kind, name)| (*kind, name)).or(cut)?;
        let count = if is_cut {
            let of_namespace = self.namespaces.get(&cluster.namespace);
            of_namespace.map_or(0, |of_namespace| of_namespace.count)
        } else {
            groups.iter().map(|members| members.len()).sum()
        };
        Some(Unread {
            kind,
            name: name.clone(),
            count,
            is_cut,
        })
    }

    /// Whether this object is unreadable. If some objects of this kind in the namespace have no entry, this object
    /// counts as one of them, unless it has been deleted or read since then.
    fn contains(&self, kind: &'static str, key: &ObjectKey) -> bool {
        let has_entry = || self.clusters.contains_key(&(kind, key.clone()));
        if !self.clusters.is_empty() && has_entry() {
            return true;
        }
        let namespaces = self.cut.get(kind);
        let has_left = || {
            let left = self
                .left
                .get(kind)
                .and_then(|left| left.get(&key.namespace));
            left.is_some_and(|left| left.contains(&key.name))
        };
        namespaces.is_some_and(|cut| cut.contains_key(&key.namespace)) && !has_left()
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

    /// Whether the last version of this Cluster is unreadable.
    pub(in crate::capi) fn has_unreadable(&self, cluster: &ObjectKey) -> bool {
        let has = |places: &Places| places.unreadable.contains(Cluster::KIND, cluster);
        self.0.read(has)
    }

    /// Sets the limit for the objects that cannot be read. Must be called before any object is added.
    #[cfg(test)]
    pub(in crate::capi) fn limit_unreadable(&self, limit: KeptLimit) {
        let limited = UnreadableMembers::new(limit);
        self.0.write(|places| places.unreadable = limited);
    }

    /// Removes the objects of a kind that are not in `listed`.
    pub(super) fn retain_unreadable<W: Stored>(&self, listed: &BTreeSet<ObjectKey>) {
        let mut last = None;
        loop {
            let next = self.0.read(|places| places.unreadable.after(last.as_ref()));
            for &(kind, ref key) in &next {
                if kind == W::KIND && !listed.contains(key) {
                    self.0.write(|places| {
                        places.unreadable.remove(kind, key);
                    });
                }
            }
            last = next.into_iter().next_back();
            if last.is_none() {
                break;
            }
        }
        let former = self.0.write(|places| places.unreadable.listed(W::KIND));
        // Dropped after the lock is released, because there can be many namespaces.
        drop(former);
    }
}
