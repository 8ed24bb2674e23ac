//! Ledgers of tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use super::nodes::MemoryNodes;
use crate::inventory::Inventory;
use crate::ledger::{LedgerPolicy, MemoryRecords, RecordLedger, SweepReport};
use crate::refusal::Unavailable;
use crate::scope::Enforcement;
use crate::time::since_epoch;

impl RecordLedger {
    /// A sweep whose monotonic clock shows the same time.
    pub async fn sweep_at(
        &self,
        now: SystemTime,
        listed: &BTreeSet<String>,
    ) -> Result<SweepReport, Unavailable> {
        self.sweep((now, now), since_epoch(now), listed).await
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
