//! The memory that each namespace uses for the members of `MachinePools`, and for the data that Machines report.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::capi::objects::{MemberLimit, ObjectKey};
use crate::memory::KeptLimit;

/// The container's memory divided by this number is the limit for the members of all `MachinePools`: 128 MiB of 1 GiB.
/// One namespace uses at most half of this memory: 250,000 members with provider IDs of 140 characters, or 5,000 nodes
/// for each of 50 clusters. Without a limit, the 500 pools of a tenant would use 1 GB.
const PART: usize = 8;

/// The container's memory divided by this number is the limit for the long lists of addresses and names that Machines
/// report: 64 MiB of 1 GiB. A tenant can write 4 KiB into the status of each Machine, which take more than 10 KiB of
/// memory.
pub(super) const PART_OF_REPORTED: usize = 16;

/// The memory for pool members, or for the data that Machines report. In the second case, the word "pool" in this type
/// means a Machine.
#[derive(Debug)]
pub(super) struct PoolMemory {
    limit: KeptLimit,
    pools: BTreeMap<ObjectKey, OfPool>,
    /// The memory that each namespace uses.
    namespaces: BTreeMap<String, usize>,
    /// The memory that all namespaces use.
    all: usize,
    /// The truncated pools in each namespace: the missing memory, and the name of the pool.
    cut: BTreeMap<String, BTreeSet<(usize, String)>>,
}

/// The memory for one pool's members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OfPool {
    /// The memory that the known members use.
    pub(super) used: usize,
    /// The memory that the omitted members would need.
    pub(super) missing: usize,
}

impl Default for PoolMemory {
    fn default() -> Self {
        Self::of_part(PART)
    }
}

impl PoolMemory {
    /// The container's memory, divided by this number.
    pub(super) fn of_part(part: usize) -> Self {
        Self::new(KeptLimit::of_memory(part, 1))
    }

    pub(super) const fn new(limit: KeptLimit) -> Self {
        Self {
            limit,
            pools: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            all: 0,
            cut: BTreeMap::new(),
        }
    }

    /// The memory that this pool is allowed to use, including the memory that it already uses. A pool keeps its used
    /// memory regardless of other pools, because known members must not become unknown.
    pub(super) fn room(&self, pool: &ObjectKey) -> usize {
        let used = self.of(pool).used;
        let of_namespace = self.of_namespace(&pool.namespace).saturating_sub(used);
        let all = self.all.saturating_sub(used);
        let room = self.limit.room((of_namespace, all), self.count(pool));
        room.max(used)
    }

    /// The limit that a pool would exceed with this memory, which is more than its [`room`](Self::room).
    pub(super) fn exceeded(&self, pool: &ObjectKey, wanted: usize) -> MemberLimit {
        let used = self.of(pool).used;
        let others = self.of_namespace(&pool.namespace).saturating_sub(used);
        if others.saturating_add(wanted) > self.limit.of_namespace() {
            MemberLimit::Namespace
        } else {
            MemberLimit::Process
        }
    }

    /// Sets the memory of this pool.
    pub(super) fn set(&mut self, pool: &ObjectKey, next: OfPool) {
        let before = self.of(pool);
        if next == before {
            return;
        }
        self.all = (self.all + next.used).saturating_sub(before.used);
        let of_namespace = self.namespaces.entry(pool.namespace.clone()).or_default();
        *of_namespace = (*of_namespace + next.used).saturating_sub(before.used);
        if *of_namespace == 0 {
            self.namespaces.remove(&pool.namespace);
        }
        let cut = self.cut.entry(pool.namespace.clone()).or_default();
        cut.remove(&(before.missing, pool.name.clone()));
        if next.missing > 0 {
            cut.insert((next.missing, pool.name.clone()));
        }
        if cut.is_empty() {
            self.cut.remove(&pool.namespace);
        }
        if next == OfPool::default() {
            self.pools.remove(pool);
        } else {
            self.pools.insert(pool.clone(), next);
        }
    }

    /// Clears the missing memory of this pool, because its current version cannot be read. Otherwise, the pool would
    /// always be the next pool to read in its namespace.
    pub(super) fn give_up(&mut self, pool: &ObjectKey) {
        let used = self.of(pool).used;
        self.set(pool, OfPool { used, missing: 0 });
    }

    /// A truncated pool for which there is now enough memory for all members. The pool is in the next namespace after
    /// `after`, because the pools of one namespace can use the memory that another namespace needs.
    pub(super) fn next_that_fits(&self, after: Option<&str>) -> Option<ObjectKey> {
        let (later, earlier) = match after {
            Some(after) => (Excluded(after), Included(after)),
            None => (Unbounded, Unbounded),
        };
        let later = self.cut.range::<str, _>((later, Unbounded));
        let earlier = self.cut.range::<str, _>((Unbounded, earlier));
        later.chain(earlier).find_map(|(namespace, pools)| {
            let own = self.of_namespace(namespace);
            let namespaces = self.namespaces.len() + usize::from(own == 0);
            let room = self.limit.room((own, self.all), namespaces);
            let (missing, name) = pools.first()?;
            (*missing <= room).then(|| ObjectKey::new(namespace.as_str(), name.as_str()))
        })
    }

    fn of(&self, pool: &ObjectKey) -> OfPool {
        self.pools.get(pool).copied().unwrap_or_default()
    }

    fn of_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).copied().unwrap_or_default()
    }

    /// The number of namespaces with members, including this pool's namespace.
    fn count(&self, pool: &ObjectKey) -> usize {
        let is_new = !self.namespaces.contains_key(&pool.namespace);
        self.namespaces.len() + usize::from(is_new)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.namespaces.is_empty() && self.all == 0 && self.cut.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(namespace, name)
    }

    /// Assigns memory to this pool, up to its limit, and returns the assigned memory.
    fn take(memory: &mut PoolMemory, pool: &ObjectKey, wanted: usize) -> usize {
        let used = wanted.min(memory.room(pool));
        let missing = wanted - used;
        memory.set(pool, OfPool { used, missing });
        used
    }

    #[test]
    fn a_pool_keeps_its_memory_if_other_namespaces_use_the_rest() {
        let mut memory = PoolMemory::new(KeptLimit::new(64));
        let (own, added) = (pool("c", "p1"), pool("c", "p2"));
        assert_eq!(take(&mut memory, &own, 20), 20);
        let others = ["a", "b"].map(|namespace| take(&mut memory, &pool(namespace, "p"), 64));
        assert_eq!(others, [28, 5], "what the first pool has left");

        assert_eq!(take(&mut memory, &own, 20), 20, "the same as before");
        assert_eq!(memory.room(&added), 0);
        assert_eq!(take(&mut memory, &own, 10), 10);
        assert_eq!(take(&mut memory, &own, 20), 15, "others have the rest");
        assert!(memory.all <= 64);
    }

    #[test]
    fn a_truncated_pool_is_due_once_it_fits() {
        let mut memory = PoolMemory::new(KeptLimit::new(64));
        let hostile = ["a", "b"].map(|namespace| pool(namespace, "p"));
        assert_eq!(
            hostile.each_ref().map(|pool| take(&mut memory, pool, 64)),
            [32, 16]
        );
        let own = pool("c", "p");
        assert_eq!(take(&mut memory, &own, 30), 5);
        assert_eq!(memory.exceeded(&own, 30), MemberLimit::Process);
        assert_eq!(memory.exceeded(&own, 33), MemberLimit::Namespace);
        assert_eq!(memory.next_that_fits(None), None);

        take(&mut memory, &hostile[0], 20);
        assert_eq!(
            memory.next_that_fits(None),
            None,
            "there is room for 7 of 25"
        );
        take(&mut memory, &hostile[0], 0);
        assert_eq!(memory.next_that_fits(None), Some(own.clone()));

        assert_eq!(take(&mut memory, &own, 30), 30);
        assert_eq!(memory.next_that_fits(None), None);
        take(&mut memory, &own, 0);
        take(&mut memory, &hostile[1], 0);
        assert!(memory.is_empty());
    }

    #[test]
    fn an_unreadable_pool_does_not_block_others_of_its_namespace() {
        let mut memory = PoolMemory::new(KeptLimit::new(64));
        let [first, second] = ["p1", "p2"].map(|name| pool("a", name));
        for (pool, missing) in [(&first, 1), (&second, 2)] {
            memory.set(pool, OfPool { used: 3, missing });
        }
        assert_eq!(memory.next_that_fits(None), Some(first.clone()));

        memory.give_up(&first);

        assert_eq!(memory.next_that_fits(None), Some(second));
        assert_eq!(memory.of(&first).used, 3, "its known members stay");
    }

    #[test]
    fn truncated_pools_are_due_in_turn_by_namespace() {
        let mut memory = PoolMemory::new(KeptLimit::new(64));
        let cut = OfPool {
            used: 0,
            missing: 1,
        };
        let too_large = OfPool {
            used: 0,
            missing: 33,
        };
        for (namespace, of_pool) in [("a", cut), ("b", too_large), ("c", cut)] {
            memory.set(&pool(namespace, "p"), of_pool);
        }
        for (after, next) in [
            (None, "a"),
            (Some("a"), "c"),
            (Some("b"), "c"),
            (Some("c"), "a"),
        ] {
            assert_eq!(
                memory.next_that_fits(after),
                Some(pool(next, "p")),
                "{after:?}"
            );
        }
    }
}
