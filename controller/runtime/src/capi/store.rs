//! The watched objects of each cluster, with an index of machine identities.
//!
//! This module performs no I/O. Objects can arrive in any order, for example a Machine before its Cluster.
//!
//! # Guarantees
//!
//! - All clusters share one lock, which is held only to find an object. The objects of each cluster have a separate
//!   lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use node_attestation_core::unshared::Unshared;

use super::api_discovery::NotServed;
use super::objects::{
    BootstrapConfig, ChangedMembers, Cluster, Machine, MachinePool, MemberLimit, ObjectKey, Watched,
};
use crate::shared::{Lock, Shared, page};
use crate::table::{Indexed, Table};

mod configs;
mod members;
mod pool_memory;
mod unreadable;
mod values;

pub(super) use configs::Referrer;
pub(super) use members::Members;
use pool_memory::{OfPool, PART_OF_REPORTED, PoolMemory};
use unreadable::UnreadableMembers;
pub(super) use values::Ground;

/// The objects of all clusters. Only one task writes.
#[derive(Debug)]
pub(super) struct Store(
    Shared<Places>,
    /// Not shared: only the pool watch uses it.
    Unshared<PoolMemory>,
    /// The memory for the addresses and names that Machines report. Not shared: only the Machine watch uses it.
    Unshared<PoolMemory>,
);

/// The index of all objects.
#[derive(Debug, Default)]
struct Places {
    clusters: BTreeMap<ObjectKey, Arc<Cluster>>,
    /// The members of each Cluster. A Cluster can have members before its own object is stored.
    members: BTreeMap<ObjectKey, Arc<Place>>,
    /// The places of Machines, used to find a Machine's Cluster after the Machine is deleted.
    machines: BTreeMap<ObjectKey, Arc<Place>>,
    /// The places of pools.
    pools: BTreeMap<ObjectKey, Arc<Place>>,
    unreadable: UnreadableMembers,
}

/// The members of one Cluster.
#[derive(Debug)]
struct Place {
    cluster: ObjectKey,
    members: Shared<Members>,
}

/// A cluster without members.
static NO_MEMBERS: LazyLock<Members> = LazyLock::new(Members::default);

/// The effect of storing an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Whether the stored object differs from the previous object.
    pub(super) is_change: bool,
    /// The limit that prevented storing a part of the object.
    pub(super) cut: Option<MemberLimit>,
}

/// An object that a [`Store`] keeps.
pub(super) trait Stored: Watched {
    /// Stores the object under this key, or removes it.
    fn put(store: &Store, key: &ObjectKey, object: Option<Self>) -> Effect;

    /// The sorted keys of the next objects after this key.
    fn keys_after(store: &Store, after: Option<&ObjectKey>) -> Vec<ObjectKey>;

    /// Records that the object with this key cannot be read. The stored object does not change. `labelled` is the
    /// cluster that the object's label names.
    fn note_unreadable(store: &Store, key: &ObjectKey, labelled: Option<&str>);

    /// Whether this Machine is being deleted. `None` for an object of another kind.
    fn is_leaving(&self) -> Option<bool> {
        None
    }

    /// The members that differ from the stored version of this pool.
    fn changed_members(&self, _store: &Store, _key: &ObjectKey) -> ChangedMembers {
        ChangedMembers::default()
    }

    /// An object that was stored only partly, and for which there is now enough memory. The object is in the next
    /// namespace after `_after` that has such an object.
    fn next_that_fits(_store: &Store, _after: Option<&str>) -> Option<ObjectKey> {
        None
    }
}

/// A Machine or a pool.
trait Member: Watched + Indexed + PartialEq {
    /// The name of the member's cluster.
    fn cluster(&self) -> &str;

    /// The name of the member's `KubeadmConfig`.
    fn config(&self) -> Option<&str>;

    /// Whether this Machine is being deleted. `None` for a pool.
    fn deleting(&self) -> Option<bool> {
        None
    }

    /// The members that differ from the version of this pool in `_members`.
    fn changed_in(&self, _members: &Members, _name: &str) -> ChangedMembers {
        ChangedMembers::default()
    }

    /// Truncates the object to the memory that is left for its namespace, and counts the omitted part. Returns the
    /// limit that made the truncation necessary.
    fn fit(_store: &Store, _key: &ObjectKey, _member: Option<&mut Self>) -> Option<MemberLimit> {
        None
    }

    /// Like [`Stored::next_that_fits`].
    fn next_with_room(_store: &Store, _after: Option<&str>) -> Option<ObjectKey> {
        None
    }

    /// Records that the current version of this object cannot be read, so that the object is not read again separately.
    fn forget_missing(_store: &Store, _key: &ObjectKey) {}

    fn table(members: &mut Members) -> &mut Table<Self>;

    fn places(places: &mut Places) -> &mut BTreeMap<ObjectKey, Arc<Place>>;

    /// The places of all members of this type.
    fn clusters(places: &Places) -> &BTreeMap<ObjectKey, Arc<Place>>;
}

impl Default for Store {
    fn default() -> Self {
        let places = Shared::new(Lock::Clusters, Places::default());
        let of_reported = Unshared::new(PoolMemory::of_part(PART_OF_REPORTED));
        Self(places, Unshared::default(), of_reported)
    }
}

impl Places {
    /// The place of this Cluster's members.
    fn of(&mut self, cluster: ObjectKey) -> Arc<Place> {
        let place = self.members.entry(cluster).or_insert_with_key(|cluster| {
            Arc::new(Place {
                cluster: cluster.clone(),
                members: Shared::new(Lock::ClusterObjects, Members::default()),
            })
        });
        place.clone()
    }
}

impl Store {
    /// A Cluster.
    pub(super) fn cluster(&self, key: &ObjectKey) -> Option<Arc<Cluster>> {
        self.0.read(|places| places.clusters.get(key).cloned())
    }

    /// The next Clusters after this key, sorted.
    pub(super) fn clusters_after(
        &self,
        after: Option<&ObjectKey>,
    ) -> Vec<(ObjectKey, Arc<Cluster>)> {
        self.0.read(|places| {
            let next = page(&places.clusters, after);
            next.map(|(key, cluster)| (key.clone(), cluster.clone()))
                .collect()
        })
    }

    /// Applies `look` to a consistent snapshot of a Cluster and its objects.
    pub(super) fn look<T>(
        &self,
        key: &ObjectKey,
        look: impl FnOnce(Option<&Cluster>, &Members) -> T,
    ) -> T {
        let (cluster, place) = self.0.read(|places| {
            let cluster = places.clusters.get(key).cloned();
            (cluster, places.members.get(key).cloned())
        });
        match place {
            Some(place) => place
                .members
                .read(|members| look(cluster.as_deref(), members)),
            None => look(cluster.as_deref(), &NO_MEMBERS),
        }
    }

    /// Stores the result of reading a `KubeadmConfig` in this cluster. `None` means that the `KubeadmConfig` does not
    /// exist.
    pub(super) fn read_config(
        &self,
        cluster: &ObjectKey,
        name: &str,
        config: Result<Option<BootstrapConfig>, NotServed>,
        now: Instant,
    ) {
        let place = self.0.read(|places| places.members.get(cluster).cloned());
        if let Some(place) = place {
            place
                .members
                .write(|members| members.read_config(name, config, now));
        }
    }

    /// Whether the cluster has no objects and uses no memory.
    #[cfg(test)]
    pub(super) fn has_no_members(&self, cluster: &ObjectKey) -> bool {
        self.0.read(|places| !places.members.contains_key(cluster))
    }

    /// Whether the memory count contains no pool members.
    #[cfg(test)]
    pub(super) fn has_no_pool_memory(&self) -> bool {
        self.1.lock().is_empty()
    }

    /// Sets the limit for the members of all pools. Must be called before any pool is stored.
    #[cfg(test)]
    pub(super) fn limit_pools(&self, limit: crate::memory::KeptLimit) {
        *self.1.lock() = PoolMemory::new(limit);
    }

    /// Sets the limit for the addresses and names that Machines report. Must be called before any Machine is stored.
    #[cfg(test)]
    pub(super) fn limit_reported(&self, limit: crate::memory::KeptLimit) {
        *self.2.lock() = PoolMemory::new(limit);
    }
}

/// Removes the objects of a kind that are not in `listed`.
pub(super) fn retain<W: Stored>(store: &Store, listed: &BTreeSet<ObjectKey>) {
    let mut last = None;
    loop {
        let next = W::keys_after(store, last.as_ref());
        for key in next.iter().filter(|key| !listed.contains(key)) {
            W::put(store, key, None);
        }
        last = next.into_iter().next_back();
        if last.is_none() {
            break;
        }
    }
    store.retain_unreadable::<W>(listed);
}

impl Stored for Cluster {
    fn put(store: &Store, key: &ObjectKey, cluster: Option<Self>) -> Effect {
        let forget = |places: &mut Places| places.unreadable.remove(Self::KIND, key);
        let was_unreadable = store.0.write(forget);
        let known = store.cluster(key);
        if known.as_deref() == cluster.as_ref() {
            return Effect {
                is_change: was_unreadable,
                cut: None,
            };
        }
        let cluster = cluster.map(Arc::new);
        let former = store.0.write(|places| match cluster {
            Some(cluster) => places.clusters.insert(key.clone(), cluster),
            None => places.clusters.remove(key),
        });
        // Dropped after the lock is released, because the Cluster can have many labels.
        drop(former);
        Effect {
            is_change: true,
            cut: None,
        }
    }

    fn keys_after(store: &Store, after: Option<&ObjectKey>) -> Vec<ObjectKey> {
        let keys = |places: &Places| {
            let next = page(&places.clusters, after);
            next.map(|(key, _)| key.clone()).collect()
        };
        store.0.read(keys)
    }

    fn note_unreadable(store: &Store, key: &ObjectKey, _labelled: Option<&str>) {
        let note = |places: &mut Places| places.unreadable.put(Self::KIND, key, key.clone());
        store.0.write(note);
    }
}

impl<M: Member> Stored for M {
    fn put(store: &Store, key: &ObjectKey, mut member: Option<Self>) -> Effect {
        let cut = Self::fit(store, key, member.as_mut());
        let cluster = member.as_ref().map(Self::cluster);
        let cluster = cluster.map(|cluster| ObjectKey::new(key.namespace.as_str(), cluster));
        let (place, former) = store.0.write(|places| {
            places.unreadable.remove(Self::KIND, key);
            let place = cluster.map(|cluster| places.of(cluster));
            let all = Self::places(places);
            let former = match &place {
                Some(place) => all.insert(key.clone(), place.clone()),
                None => all.remove(key),
            };
            // The member was deleted, or now belongs to another cluster.
            let is_same = |former: &Arc<Place>| {
                let own = place.as_ref();
                own.is_some_and(|own| Arc::ptr_eq(own, former))
            };
            let former = former.filter(|former| !is_same(former));
            (place, former)
        });
        let mut is_change = former.is_some();
        if let (Some(place), Some(member)) = (place, member) {
            let put = |members: &mut Members| members.put(&key.name, member);
            is_change |= place.members.write(put);
        }
        if let Some(former) = former {
            former.members.write(|members| {
                members.remove::<Self>(&key.name);
                if members.is_empty() {
                    store
                        .0
                        .write(|places| places.members.remove(&former.cluster));
                }
            });
        }
        Effect { is_change, cut }
    }

    fn keys_after(store: &Store, after: Option<&ObjectKey>) -> Vec<ObjectKey> {
        let keys = |places: &Places| {
            let next = page(Self::clusters(places), after);
            next.map(|(key, _)| key.clone()).collect()
        };
        store.0.read(keys)
    }

    fn note_unreadable(store: &Store, key: &ObjectKey, labelled: Option<&str>) {
        store.0.write(|places| {
            let known = Self::clusters(places).get(key);
            let known = known.map(|place| place.cluster.clone());
            let labelled = || ObjectKey::new(key.namespace.as_str(), labelled.unwrap_or_default());
            let cluster = known.unwrap_or_else(labelled);
            places.unreadable.put(Self::KIND, key, cluster);
        });
        Self::forget_missing(store, key);
    }

    fn is_leaving(&self) -> Option<bool> {
        self.deleting()
    }

    fn changed_members(&self, store: &Store, key: &ObjectKey) -> ChangedMembers {
        // A Machine has no members, and most events are about Machines.
        if self.deleting().is_some() {
            return ChangedMembers::default();
        }
        let place = store
            .0
            .read(|places| Self::clusters(places).get(key).cloned());
        let changed = |members: &Members| self.changed_in(members, &key.name);
        match place {
            Some(place) => place.members.read(changed),
            None => changed(&NO_MEMBERS),
        }
    }

    fn next_that_fits(store: &Store, after: Option<&str>) -> Option<ObjectKey> {
        Self::next_with_room(store, after)
    }
}

impl Member for Machine {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn config(&self) -> Option<&str> {
        self.config.as_ref().map(|config| config.name.as_str())
    }

    fn deleting(&self) -> Option<bool> {
        Some(self.deleting)
    }

    fn fit(store: &Store, key: &ObjectKey, machine: Option<&mut Self>) -> Option<MemberLimit> {
        let mut memory = store.2.lock();
        let Some(machine) = machine else {
            memory.set(key, OfPool::default());
            return None;
        };
        let (wanted, room) = (machine.counted_memory(), memory.room(key));
        if wanted > room {
            let is_of_namespace = memory.exceeded(key, wanted) == MemberLimit::Namespace;
            machine.omit_reported(if is_of_namespace {
                MemberLimit::ReportedOfNamespace
            } else {
                MemberLimit::Reported
            });
        }
        let used = machine.counted_memory();
        let missing = wanted.saturating_sub(used);
        memory.set(key, OfPool { used, missing });
        machine.cut
    }

    fn next_with_room(store: &Store, after: Option<&str>) -> Option<ObjectKey> {
        store.2.lock().next_that_fits(after)
    }

    fn forget_missing(store: &Store, key: &ObjectKey) {
        store.2.lock().give_up(key);
    }

    fn table(members: &mut Members) -> &mut Table<Self> {
        &mut members.machines
    }

    fn places(places: &mut Places) -> &mut BTreeMap<ObjectKey, Arc<Place>> {
        &mut places.machines
    }

    fn clusters(places: &Places) -> &BTreeMap<ObjectKey, Arc<Place>> {
        &places.machines
    }
}

impl Member for MachinePool {
    fn cluster(&self) -> &str {
        &self.cluster
    }

    fn changed_in(&self, members: &Members, name: &str) -> ChangedMembers {
        let before = members.pools.get(name);
        before.map_or_else(|| self.all_added(), |before| self.changed_from(before))
    }

    fn fit(store: &Store, key: &ObjectKey, pool: Option<&mut Self>) -> Option<MemberLimit> {
        let mut memory = store.1.lock();
        let Some(pool) = pool else {
            memory.set(key, OfPool::default());
            return None;
        };
        let (wanted, room) = (pool.provider_ids.memory(), memory.room(key));
        if wanted > room {
            pool.cut = Some(memory.exceeded(key, wanted));
            let place = store.0.read(|places| places.pools.get(key).cloned());
            match place {
                Some(place) => place.members.read(|members| {
                    let known = members.pools.get(&key.name);
                    let known = known.map(|known| &known.provider_ids);
                    pool.provider_ids.fit(room, known);
                }),
                None => pool.provider_ids.fit(room, None),
            }
        }
        let used = pool.provider_ids.memory();
        let missing = wanted.saturating_sub(used);
        memory.set(key, OfPool { used, missing });
        pool.cut
    }

    fn next_with_room(store: &Store, after: Option<&str>) -> Option<ObjectKey> {
        store.1.lock().next_that_fits(after)
    }

    fn forget_missing(store: &Store, key: &ObjectKey) {
        store.1.lock().give_up(key);
    }

    fn config(&self) -> Option<&str> {
        self.config.as_ref().map(|config| config.name.as_str())
    }

    fn table(members: &mut Members) -> &mut Table<Self> {
        &mut members.pools
    }

    fn places(places: &mut Places) -> &mut BTreeMap<ObjectKey, Arc<Place>> {
        &mut places.pools
    }

    fn clusters(places: &Places) -> &BTreeMap<ObjectKey, Arc<Place>> {
        &places.pools
    }
}
