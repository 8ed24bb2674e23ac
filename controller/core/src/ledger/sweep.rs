//! What time and the cloud do to records, once a minute: machines go, certificates expire, Nodes come
//! back from the dead.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kubelet_attestation::names::NodeName;

use super::RecordLedger;
use super::record::{Record, TombstoneReason};
use super::records::{Stored, WriteError};
use super::rules::HolderState;
use crate::logs::error_chain;
use crate::refusal::Unavailable;

/// The Node that a former holder left is looked for this long after the name has changed hands;
/// usually the claim itself deletes it.
const STALE_NODE_LOOKED_FOR: Duration = Duration::from_mins(10);

/// A member of a pool that no Machine stands for is gone when its pool has not listed it for so long:
/// clouds answer with half a list at times, and what is buried over one loses its certificates.
const UNLISTED: Duration = Duration::from_mins(10);

/// What there is after a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The first end of a certificate of a live record, as far as it is known.
    pub earliest_expiry: Option<SystemTime>,
    /// Records that somebody holds.
    pub live: usize,
    /// Those of them whose machine proved itself.
    pub attested: usize,
    /// Those of them that a person revoked.
    pub revoked: usize,
    /// Tombstones.
    pub tombstones: usize,
}

/// What is to be done about one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chore {
    /// Its machine is gone.
    Bury(TombstoneReason),
    /// No certificate of it can be valid any more.
    Delete,
    /// Remove whatever Node there is of its name: nobody holds it.
    RemoveNode,
    /// Remove the Node of this UID.
    RemoveStaleNode(String),
}

/// What is to be done about `record`, whose machine fares like this.
pub(super) fn chore(record: &Record, holder: HolderState, now: SystemTime) -> Option<Chore> {
    match &record.tombstone {
        None if holder == HolderState::Gone => Some(Chore::Bury(TombstoneReason::MachineGone)),
        None => {
            let opened = &record.opened;
            let recent = now <= opened.time + STALE_NODE_LOOKED_FOR;
            let stale = opened.stale_node.clone().filter(|_| recent);
            stale.map(Chore::RemoveStaleNode)
        }
        Some(_) if record.former_end().is_none_or(|end| end < now) => Some(Chore::Delete),
        Some(tombstone) => match tombstone.reason {
            TombstoneReason::MachineGone | TombstoneReason::Renamed => Some(Chore::RemoveNode),
            TombstoneReason::Unmanaged => None,
        },
    }
}

impl RecordLedger {
    /// Sweeps all records: those whose machine is gone become tombstones, tombstones whose
    /// certificates have expired go, and Nodes of names that nobody holds are deleted. What was
    /// issued meanwhile is written down, once a certificate.
    ///
    /// For whoever serves the cluster, once a minute, while the inventory is complete and the
    /// cluster is not paused.
    ///
    /// # Errors
    ///
    /// The records cannot be had. What goes wrong with a single one is logged, and left to the next
    /// sweep; so is a machine that cannot be looked up.
    pub async fn sweep(&self, now: SystemTime) -> Result<Swept, Unavailable> {
        let mut swept = Swept::default();
        let former = std::mem::take(&mut *self.unlisted());
        for stored in self.records().all().await? {
            self.write_down(&stored.record.node_name).await;
            let Ok(holder) = self.holder_state(&stored.record.holder).await else {
                swept.count(&stored.record);
                continue;
            };
            let holder = self.confirmed(&stored.record, holder, &former, now);
            match chore(&stored.record, holder, now) {
                None => swept.count(&stored.record),
                Some(chore) => self.carry_out(chore, stored, &mut swept, now).await,
            }
        }
        Ok(swept)
    }

    /// How the holder fares; one that is only not listed is not gone before its time. `former`: since
    /// when those were not listed that were not at the last sweep.
    fn confirmed(
        &self,
        record: &Record,
        holder: HolderState,
        former: &BTreeMap<NodeName, SystemTime>,
        now: SystemTime,
    ) -> HolderState {
        if holder != HolderState::Gone || record.holder.machine_name.is_some() {
            return holder;
        }
        let name = &record.node_name;
        let since = former.get(name).copied().unwrap_or(now);
        self.unlisted().insert(name.clone(), since);
        if now < since + UNLISTED {
            HolderState::Leaving
        } else {
            HolderState::Gone
        }
    }

    async fn write_down(&self, name: &NodeName) {
        let Some(issued) = self.take_issued(name) else {
            return;
        };
        if let Err(error) = self.records().note(name, &issued).await {
            tracing::debug!(
                node = name.as_str(),
                error = error_chain(&error),
                "what was issued could not be written down"
            );
        }
    }

    async fn carry_out(&self, chore: Chore, stored: Stored, swept: &mut Swept, now: SystemTime) {
        let Stored { record, version } = &stored;
        let name = &record.node_name;
        let failed = match chore {
            Chore::Bury(reason) => {
                let buried = record.buried(reason, self.policy().longest_lifetime, now);
                swept.count(&buried);
                let written = self.records().replace(&buried, version).await;
                written.err().and_then(outage)
            }
            Chore::Delete => {
                let deleted = self.records().delete(name, version).await;
                deleted.err().and_then(outage)
            }
            Chore::RemoveNode => {
                swept.count(record);
                self.remove_node(&stored).await.err()
            }
            Chore::RemoveStaleNode(uid) => {
                swept.count(record);
                self.nodes().delete(name, &uid).await.err()
            }
        };
        if let Some(error) = failed {
            tracing::warn!(
                node = name.as_str(),
                error = error_chain(&error),
                "a record could not be swept"
            );
        }
    }

    /// Deletes the Node of a name that nobody holds. Whoever makes one by right has claimed the name
    /// before, so the record is read after the Node: a cache lags, and a sweep takes its time.
    async fn remove_node(&self, stored: &Stored) -> Result<(), Unavailable> {
        let name = &stored.record.node_name;
        let state = self.nodes().state(name).await?;
        let Some(uid) = state.uid() else {
            return Ok(());
        };
        let fresh = self.records().read(name).await?;
        if fresh.is_none_or(|fresh| fresh.version != stored.version) {
            return Ok(());
        }
        self.nodes().delete(name, uid).await?;
        tracing::info!(node = name.as_str(), "a Node that nobody holds is deleted");
        Ok(())
    }
}

/// One that changed meanwhile is left to the next sweep.
fn outage(error: WriteError) -> Option<Unavailable> {
    match error {
        WriteError::Exists | WriteError::Conflict => None,
        WriteError::Unavailable(error) => Some(error),
    }
}

impl Swept {
    fn count(&mut self, record: &Record) {
        if !record.is_live() {
            self.tombstones += 1;
            return;
        }
        self.live += 1;
        self.attested += usize::from(record.holder.is_attested());
        self.revoked += usize::from(record.is_revoked());
        let end = Some(record.known_end());
        self.earliest_expiry = match self.earliest_expiry {
            None => end,
            earliest => earliest.min(end),
        };
    }
}

#[cfg(test)]
mod tests;
