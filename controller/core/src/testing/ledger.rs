//! Ledgers of tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::nodes::MemoryNodes;
use crate::inventory::Inventory;
use crate::ledger::{LedgerPolicy, MemoryRecords, RecordLedger, SweepReport};
use crate::refusal::Unavailable;
use crate::scope::Enforcement;

impl RecordLedger {
    /// A sweep whose monotonic clock shows the same time.
    pub async fn sweep_at(
        &self,
        now: SystemTime,
        listed: &BTreeSet<String>,
    ) -> Result<SweepReport, Unavailable> {
        let elapsed = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.sweep((now, now), elapsed, listed).await
    }

    /// A ledger in memory, of a cluster without Nodes.
    pub fn in_memory(inventory: Arc<dyn Inventory>, policy: LedgerPolicy) -> Self {
        Self::new(
            Arc::new(MemoryRecords::default()),
            inventory,
            Arc::new(MemoryNodes::default()),
            policy,
            Enforcement::default(),
        )
    }

    /// The same, with UIDs that are made from these bytes.
    #[must_use]
    pub fn with_entropy(
        mut self,
        entropy: impl Fn() -> Option<[u8; 16]> + Send + Sync + 'static,
    ) -> Self {
        self.entropy = Box::new(entropy);
        self
    }
}
