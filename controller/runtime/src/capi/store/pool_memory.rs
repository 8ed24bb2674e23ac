//! The memory of the members of `MachinePools`, by namespace.

use std::collections::BTreeMap;

use crate::capi::objects::ObjectKey;
use crate::memory::KeptLimit;

/// The part of the container's memory for the members of all `MachinePools`: 128 MiB of 1 GiB. A namespace has at most
/// half: 250,000 members with provider IDs of 140 characters, or 5,000 nodes for each of 50 clusters. Without a limit,
/// the 500 pools of a tenant would use 1 GB.
const PART: usize = 8;

/// The memory of the members of pools.
#[derive(Debug)]
pub(super) struct PoolMemory {
    limit: KeptLimit,
    pools: BTreeMap<ObjectKey, usize>,
    namespaces: BTreeMap<String, usize>,
    all: usize,
}

impl Default for PoolMemory {
    fn default() -> Self {
        Self {
            limit: KeptLimit::of_memory(PART, 1),
            pools: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            all: 0,
        }
    }
}

impl PoolMemory {
    /// The memory that this pool can use, including the memory that it uses.
    pub(super) fn room(&self, pool: &ObjectKey) -> usize {
        let (used, known) = (self.used(pool), self.namespaces.get(&pool.namespace));
        let of_namespace = known.copied().unwrap_or_default().saturating_sub(used);
        let namespaces = self.namespaces.len() + usize::from(known.is_none());
        let all = self.all.saturating_sub(used);
        self.limit.room((of_namespace, all), namespaces)
    }

    /// Sets the memory that this pool uses.
    pub(super) fn set(&mut self, pool: &ObjectKey, bytes: usize) {
        let before = self.used(pool);
        if bytes == before {
            return;
        }
        self.all = (self.all + bytes).saturating_sub(before);
        let of_namespace = self.namespaces.entry(pool.namespace.clone()).or_default();
        *of_namespace = (*of_namespace + bytes).saturating_sub(before);
        if *of_namespace == 0 {
            self.namespaces.remove(&pool.namespace);
        }
        if bytes == 0 {
            self.pools.remove(pool);
        } else {
            self.pools.insert(pool.clone(), bytes);
        }
    }

    fn used(&self, pool: &ObjectKey) -> usize {
        self.pools.get(pool).copied().unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.namespaces.is_empty() && self.all == 0
    }
}
