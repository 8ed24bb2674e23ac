//! The sweep of the records, once a minute: machines are deleted, certificates expire, deleted Nodes
//! return.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;

use super::absences::holding;
use super::node_removal::Removal;
use super::record::{Record, whole_seconds};
use super::records::{Stored, WriteError};
use super::rules::HolderState;
use super::{LastIssued, RecordLedger, TombstoneReason};
use crate::refusal::Unavailable;
use crate::verifier::TpmBoot;

/// The Node that a former holder left is looked for this long after the name has changed hands;
/// usually the claim itself deletes it.
const STALE_NODE_LOOKED_FOR: Duration = Duration::from_mins(10);

/// The Node of a machine that is gone is looked for this long after its record became a tombstone, and later only
/// where it was listed: a cluster may have had thousands of machines that are gone.
const NODE_LOOKED_FOR: Duration = Duration::from_mins(10);

/// A record of which nothing is written down yet waits for so long after its certificate: a join's
/// own writes are enough while machines join by the hundred.
const FIRST_NOTE_AFTER: Duration = Duration::from_hours(1);

/// An end that is written down may be out of date by as much: so a node that renews costs one write
/// a day at most.
const END_MAY_LAG: Duration = Duration::from_hours(24);

/// The records after a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// The first end of a certificate of a live record that is not revoked, as far as it is known.
    pub earliest_expiry: Option<SystemTime>,
    /// Records that somebody holds.
    pub live: usize,
    /// The number of live records whose machine proved its identity.
    pub attested: usize,
    /// The number of live records that a person revoked.
    pub revoked: usize,
    /// Tombstones.
    pub tombstones: usize,
    /// The number of live records whose machines are gone, if it is so large that none of them was
    /// retired: a person has to allow it ([`Absences::allow`](super::Absences::allow)).
    pub held_back: Option<usize>,
    /// The actions of the sweep, for people.
    pub done: Vec<SweepAction>,
    /// The records that could not be updated. The next sweep tries again.
    pub failed: Option<FailedUpdates>,
    /// The names of tombstones whose Nodes could not be read or deleted.
    pub not_removed: BTreeSet<String>,
}

/// Something that a sweep did, and that people may wonder about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SweepAction {
    /// The name of the record.
    pub node_name: NodeName,
    /// The record's generation; the last one where nobody holds it any more.
    pub generation: u64,
    /// The action.
    pub what: Swept,
}

/// Records that a sweep could not update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedUpdates {
    /// The name of the first one.
    pub node_name: NodeName,
    /// Its error, with the causes.
    pub error: String,
    /// Their number.
    pub count: usize,
}

/// An action of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Swept {
    /// The record became a tombstone: its machine is gone.
    Buried,
    /// The record became a tombstone: its Machine is there with another provider ID.
    Contradicted,
    /// A Node of a name that nobody holds was deleted.
    NodeRemoved,
    /// The Node that the name's former holder left was deleted.
    StaleNodeRemoved,
}

/// Whether what was issued is to be written down: where nothing is yet, an hour after; otherwise when
/// what is written misleads, because it is a day out of date, has passed, or is too late. Of a machine
/// that was started anew at once: by that a copy of its TPM is told, and our memory may not last.
fn is_due(issued: &LastIssued, record: &Record, now: SystemTime) -> bool {
    let starts = |boot: TpmBoot| (boot.resets, boot.restarts);
    if issued.boot.map(starts) > record.known_boot().map(starts) {
        return true;
    }
    match record.renewed_until {
        None => now >= issued.time + FIRST_NOTE_AFTER,
        Some(written) => {
            let end = whole_seconds(issued.not_after);
            end < written || written <= now && written < end || end >= written + END_MAY_LAG
        }
    }
}

/// The action for one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GcAction {
    /// Make it a tombstone, for this reason.
    Bury(Swept),
    /// No certificate of it can be valid any more.
    Delete,
    /// Remove the Node that its holder left.
    RemoveNode,
    /// Remove the Node of this UID.
    RemoveStaleNode(String),
}

/// The work on `record`, by the state of its machine; `is_listed` tells whether a Node of its name was listed.
pub(super) fn chore(
    record: &Record,
    holder: HolderState,
    is_listed: bool,
    (now, ended_by): (SystemTime, SystemTime),
) -> Option<GcAction> {
    match &record.tombstone {
        None if holder == HolderState::Gone => Some(GcAction::Bury(Swept::Buried)),
        None if holder == HolderState::Contradicted => Some(GcAction::Bury(Swept::Contradicted)),
        None => {
            let opened = &record.opened;
            let recent = now <= opened.time + STALE_NODE_LOOKED_FOR;
            let stale = opened.stale_node.clone().filter(|_| recent);
            stale.map(GcAction::RemoveStaleNode)
        }
        Some(_) if record.former_end().is_none_or(|end| end < ended_by) => Some(GcAction::Delete),
        Some(tombstone) => match tombstone.reason {
            TombstoneReason::MachineGone | TombstoneReason::Renamed => {
                let is_recent = now <= tombstone.since + NODE_LOOKED_FOR;
                (is_recent || is_listed).then_some(GcAction::RemoveNode)
            }
            TombstoneReason::Unmanaged => None,
        },
    }
}

impl RecordLedger {
    /// Sweeps all records: those whose machine is gone become tombstones, unless that would be too many
    /// at once ([`SweepReport::held_back`]); tombstones whose certificates have expired go, and Nodes of names that nobody holds are deleted. What was
    /// issued meanwhile is written down where what is written misleads: once a day and record at
    /// most, unless certificates live for less. The first end is known without that, from records
    /// and memory.
    ///
    /// For whoever serves the cluster, once a minute, while the inventory is complete and the
    /// cluster is not paused. A tombstone goes when its certificates have expired by `ended_by`, which is `now` or before:
    /// a clock that is ahead removes none for good. `elapsed` is a monotonic time, for absences. `listed` has the names of Nodes of a list since the last sweep, if there was one:
    /// the cost does not grow with the number of machines that are gone.
    ///
    /// # Errors
    ///
    /// The records cannot be had. What goes wrong with single ones is in the report, and left to the next
    /// sweep; so is a machine that cannot be looked up.
    pub async fn sweep(
        &self,
        (now, ended_by): (SystemTime, SystemTime),
        elapsed: Duration,
        listed: &BTreeSet<String>,
    ) -> Result<SweepReport, Unavailable> {
        let mut swept = SweepReport::default();
        let all = self.records().all().await?;
        let names: BTreeSet<_> = all.iter().map(|one| &one.record.node_name).collect();
        self.issued.lock().retain(|name, _| names.contains(name));
        let mut found = Vec::with_capacity(all.len());
        for stored in all {
            let holder = self.holder_state(&stored.record.holder).await.ok();
            found.push((stored, holder));
        }
        let live = || found.iter().filter(|(stored, _)| stored.record.is_live());
        let is_missing = |holder| matches!(holder, HolderState::Gone | HolderState::Contradicted);
        let missing = live().filter(|(_, holder)| holder.is_some_and(is_missing));
        let missing = missing.map(|(stored, _)| holding(&stored.record)).collect();
        let leaving = live().filter(|(_, holder)| *holder == Some(HolderState::Leaving));
        let leaving = leaving.map(|(stored, _)| holding(&stored.record)).collect();
        let mut gone = self.absences.round(missing, leaving, elapsed);
        if !self.absences.may_retire(&gone, live().count()) {
            swept.held_back = Some(gone.len());
            gone.clear();
        }
        for (stored, holder) in found {
            let issued = self.last_issued(&stored.record);
            self.write_down(&stored.record, issued.as_ref(), now).await;
            let Some(holder) = holder else {
                swept.count(&stored.record, issued.as_ref());
                continue;
            };
            let is_settled = !is_missing(holder) || gone.contains(&holding(&stored.record));
            let holder = if is_settled {
                holder
            } else {
                HolderState::Leaving
            };
            let is_listed = listed.contains(stored.record.node_name.as_str());
            match chore(&stored.record, holder, is_listed, (now, ended_by)) {
                None => swept.count(&stored.record, issued.as_ref()),
                Some(chore) => self.carry_out(chore, stored, &mut swept, now).await,
            }
        }
        Ok(swept)
    }

    async fn write_down(&self, record: &Record, issued: Option<&LastIssued>, now: SystemTime) {
        let name = &record.node_name;
        let due = |issued: &&LastIssued| is_due(issued, record, now);
        let Some(issued) = issued.filter(due).filter(|_| record.is_live()) else {
            return;
        };
        if let Err(error) = self.records().note(name, issued).await {
            tracing::debug!(
                node = name.as_str(),
                error = error_chain(&error),
                "the status of a record could not be written"
            );
        }
    }

    async fn carry_out(
        &self,
        chore: GcAction,
        stored: Stored,
        swept: &mut SweepReport,
        now: SystemTime,
    ) {
        let Stored { record, version } = &stored;
        let name = &record.node_name;
        let generation = record.generation;
        let done = match chore {
            GcAction::Bury(what) => {
                let longest = self.policy().longest_lifetime;
                let buried = record.buried(TombstoneReason::MachineGone, longest, now);
                swept.count(&buried, None);
                let replaced = written(self.records().replace(&buried, version).await);
                if let Ok(Some(_)) = replaced {
                    let node = name.as_str();
                    tracing::info!(node, generation, "the record became a tombstone");
                }
                replaced.map(|replaced| replaced.map(|_| what))
            }
            GcAction::Delete => {
                let deleted = written(self.records().delete(name, version).await);
                deleted.map(|_| None)
            }
            GcAction::RemoveNode => {
                swept.count(record, None);
                let removal = Removal::Retired(&stored);
                let removed = self.remove_node(name, None, removal, now).await;
                if removed.is_err() {
                    swept.not_removed.insert(name.to_string());
                }
                let removed = removed.map_err(Unavailable::new);
                removed.map(|removed| removed.then_some(Swept::NodeRemoved))
            }
            GcAction::RemoveStaleNode(uid) => {
                swept.count(record, self.last_issued(record).as_ref());
                let removal = Removal::Left(record);
                let removed = self.remove_node(name, Some(&uid), removal, now).await;
                let removed = removed.map_err(Unavailable::new);
                removed.map(|removed| removed.then_some(Swept::StaleNodeRemoved))
            }
        };
        match done {
            Ok(what) => swept.done.extend(what.map(|what| SweepAction {
                node_name: name.clone(),
                generation,
                what,
            })),
            Err(error) => {
                let failed = swept.failed.get_or_insert_with(|| FailedUpdates {
                    node_name: name.clone(),
                    error: error_chain(&error),
                    count: 0,
                });
                failed.count += 1;
            }
        }
    }
}

/// The written value; `None` if the record changed meanwhile: it is left to the next sweep.
fn written<T>(written: Result<T, WriteError>) -> Result<Option<T>, Unavailable> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(WriteError::Exists | WriteError::Conflict) => Ok(None),
        Err(WriteError::Unavailable(error)) => Err(error),
    }
}

impl SweepReport {
    /// The end is that of its certificate which was last `issued`, where that is known.
    fn count(&mut self, record: &Record, issued: Option<&LastIssued>) {
        if !record.is_live() {
            self.tombstones += 1;
            return;
        }
        self.live += 1;
        self.attested += usize::from(record.holder.is_attested());
        if record.is_revoked() {
            // It cannot renew, so that its end is not for an alert.
            self.revoked += 1;
            return;
        }
        let end = Some(issued.map_or_else(|| record.known_end(), |issued| issued.not_after));
        self.earliest_expiry = match self.earliest_expiry {
            None => end,
            earliest => earliest.min(end),
        };
    }
}

#[cfg(test)]
mod tests;
