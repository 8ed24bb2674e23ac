//! Ledgers for tests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use super::nodes::MemoryNodes;
use crate::inventory::Inventory;
use crate::ledger::{LedgerPolicy, MemoryRecords, RecordLedger, SweepReport};
use crate::refusal::Unavailable;
use crate::scope::Enforcement;
use crate::time::since_epoch;

impl RecordLedger {
    /// Runs a sweep at this time, which the monotonic clock also shows, and returns its result.
    pub async fn sweep_at(
        &self,
        now: SystemTime,
        listed: &BTreeSet<String>,
    ) -> Result<SweepReport, Unavailable> {
        self.sweep((now, now), since_epoch(now), listed).await
    }

    /// An in-memory ledger for a cluster without Nodes.
    pub fn in_memory(inventory: Arc<dyn Inventory>, policy: LedgerPolicy) -> Self {
        Self::new(
            Arc::new(MemoryRecords::default()),
            inventory,
            Arc::new(MemoryNodes::default()),
            policy,
            Enforcement::default(),
        )
    }

    /// Makes the ledger use these UIDs for new records.
    #[must_use]
    pub fn with_uids(mut self, uids: &Uids) -> Self {
        let uids = uids.clone();
        self.entropy = Box::new(move || Some(uids.next()));
        self
    }
}

/// UIDs that are derived from a counter, so that two records never have the same UID. Clones share the counter.
#[derive(Debug, Clone)]
pub struct Uids {
    first: u128,
    drawn: Arc<AtomicU32>,
}

impl Uids {
    /// Creates UIDs that start with this UID.
    pub fn from(first: [u8; 16]) -> Self {
        Self {
            first: u128::from_be_bytes(first),
            drawn: Arc::default(),
        }
    }

    fn next(&self) -> [u8; 16] {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        self.first.wrapping_add(drawn.into()).to_be_bytes()
    }
}
