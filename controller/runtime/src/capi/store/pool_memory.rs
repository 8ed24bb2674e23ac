//! The memory of the members of `MachinePools`, by namespace.

use std::collections::BTreeMap;

use crate::capi::objects::ObjectKey;

/// The maximum memory of the members of all `MachinePools` of one namespace: 250,000 members with provider IDs of 140
/// characters, or 5,000 nodes for each of 50 clusters. Without a limit, the 500 pools of a tenant would use 1 GB.
pub(super) const MAX_POOL_MEMORY: usize = 64 * 1024 * 1024;

/// The memory of the members of pools.
#[derive(Debug, Default)]
pub(super) struct PoolMemory {
    pools: BTreeMap<ObjectKey, usize>,
    namespaces: BTreeMap<String, usize>,
}

impl PoolMemory {
    /// The memory that this pool can use, including the memory that it uses.
    pub(super) fn room(&self, pool: &ObjectKey) -> usize {
        let all = self.namespaces.get(&pool.namespace).copied();
        let others = all.unwrap_or_default().saturating_sub(self.used(pool));
        MAX_POOL_MEMORY.saturating_sub(others)
    }

    /// Sets the memory that this pool uses.
    pub(super) fn set(&mut self, pool: &ObjectKey, bytes: usize) {
        let before = self.used(pool);
        if bytes == before {
            return;
        }
        let all = self.namespaces.entry(pool.namespace.clone()).or_default();
        *all = (*all + bytes).saturating_sub(before);
        if *all == 0 {
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
        self.pools.is_empty() && self.namespaces.is_empty()
    }
}
