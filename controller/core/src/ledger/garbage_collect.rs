//! The sweep of the records, which runs once per minute. It handles deleted machines, expired certificates, and deleted
//! Nodes that were created again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::NodeName;

use super::absences::holding;
use super::record::{Record, whole_seconds};
use super::record_ledger::DueRemoval;
use super::records::{Stored, WriteError};
use super::rules::HolderState;
use super::{LastIssued, RecordLedger, TombstoneReason};
use crate::cluster_line;
use crate::pace::{Pace, retain};
use crate::refusal::Unavailable;
use crate::time::until;
use crate::verifier::TpmBoot;

/// After the holder of a name changes, the sweep deletes the previous holder's Node during this time. Usually, the
/// claim itself has already deleted that Node.
const STALE_NODE_LOOKED_FOR: Duration = Duration::from_mins(10);

/// After a record is retired, the sweep looks up the machine's Node during this time. After this time, the sweep looks
/// up the Node only if the Node was listed, because a cluster can have thousands of retired records.
const NODE_LOOKED_FOR: Duration = Duration::from_mins(10);

/// The time between the first certificate and the write of its expiry time to the record. When hundreds of machines
/// join, this delay avoids a second write for each join.
const FIRST_NOTE_AFTER: Duration = Duration::from_hours(1);

/// A certificate is overdue for renewal if its remaining validity is less than this time, and less than a quarter of
/// its total validity. A node renews about once per day, or after at most 70 % of the validity of a short-lived
/// certificate.
const OVERDUE_BELOW: Duration = Duration::from_hours(24);

/// The maximum delay of a stored expiry time. A node that renews causes at most one write per day.
const END_MAY_LAG: Duration = Duration::from_hours(24);

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// The earliest known expiry time of a live record's certificate. Excludes revoked records and expired
    /// certificates.
    pub earliest_expiry: Option<SystemTime>,
    /// The number of Ready Nodes, up to 100, whose certificates are overdue for renewal. Excludes Nodes that could not
    /// be read. `None` if no Node could be read.
    pub overdue: Option<usize>,
    /// The number of records with a holder.
    pub live: usize,
    /// The number of live records whose machine was attested.
    pub attested: usize,
    /// The number of live records that an operator revoked.
    pub revoked: usize,
    /// The number of retired records.
    pub tombstones: usize,
    /// The number of live records whose machines are missing without an observed deletion. Set if the sweep did not
    /// retire any of these records, because there are too many of them. An operator must allow the retirement
    /// ([`Absences::allow`](super::Absences::allow)).
    pub held_back: Option<usize>,
    /// The actions of the sweep, for operators.
    pub done: Vec<SweepAction>,
    /// The records that the sweep could not update. The next sweep retries.
    pub failed: Option<FailedUpdates>,
    /// The node names of retired records whose Nodes could not be read or deleted.
    pub not_removed: BTreeSet<String>,
}

/// The error for a Node that was not deleted, because the calls for this Node or for other Nodes took too long.
#[derive(Debug, thiserror::Error)]
#[error("the time limit passed before the Node was deleted")]
struct NoTimeLeft;

/// An action of a sweep that operators need to see.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SweepAction {
    /// The node name of the record.
    pub node_name: NodeName,
    /// The generation of the record. For a retired record, the last generation.
    pub generation: u64,
    /// The action.
    pub what: Swept,
}

/// Records that a sweep could not update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedUpdates {
    /// The node name of the first record.
    pub node_name: NodeName,
    /// The error for the first record, with its causes.
    pub error: String,
    /// The number of records.
    pub count: usize,
}

/// An action of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Swept {
    /// The record was retired, because its machine no longer exists.
    Retired,
    /// The record was retired, because its Machine has a different provider ID.
    Contradicted,
    /// A Node was deleted, because its name has no holder.
    NodeRemoved,
    /// The Node of the name's previous holder was deleted.
    StaleNodeRemoved,
}

/// Whether the issued certificate must be written to its record. The first write is due one hour after the certificate
/// is issued. After that, a write is due if the stored expiry time is one day too early, is too late, or has passed.
/// After a restart of the machine's TPM, a write is due immediately, because the sweep needs the stored boot to detect
/// a copy of the TPM, and a restart of the process loses the observed boot.
fn is_due(issued: &LastIssued, record: &Record, (now, elapsed): (SystemTime, Duration)) -> bool {
    let starts = |boot: TpmBoot| (boot.resets, boot.restarts);
    if issued.boot.map(starts) > record.known_boot().map(starts) {
        return true;
    }
    match record.renewed_until {
        None => elapsed >= issued.elapsed + FIRST_NOTE_AFTER,
        Some(written) => {
            let end = whole_seconds(issued.not_after);
            end < written || written <= now && written < end || end >= written + END_MAY_LAG
        }
    }
}

/// Whether the node should have renewed its certificate, which has not expired. If another process issued the
/// certificate, the stored expiry time can be up to two days old, which matters only for short-lived certificates.
fn is_overdue(issued: Option<&LastIssued>, record: &Record, now: SystemTime) -> bool {
    let (end, validity) = match issued {
        Some(issued) => (issued.not_after, until(issued.not_after, issued.time)),
        None => (record.known_end(), record.opened_for()),
    };
    let (left, quarter) = (until(end, now), validity / 4);
    let is_known = issued.is_some() || quarter >= OVERDUE_BELOW;
    let can_renew = record.is_live() && !record.is_revoked() && !left.is_zero();
    can_renew && is_known && left < quarter.min(OVERDUE_BELOW)
}

/// The action on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GcAction {
    /// Retire the record, for this reason.
    Retire(Swept),
    /// Delete the record, because all of its certificates have expired.
    Delete,
    /// Delete the Node of its last holder.
    RemoveNode,
    /// Delete the Node with this UID.
    RemoveStaleNode(String),
}

/// Returns the action on `record`, given the state of its machine. `is_listed` means that a Node with this name was
/// listed.
pub(super) fn gc_action(
    record: &Record,
    holder: HolderState,
    is_listed: bool,
    (now, ended_by): (SystemTime, SystemTime),
) -> Option<GcAction> {
    match &record.tombstone {
        None if holder == HolderState::Gone => Some(GcAction::Retire(Swept::Retired)),
        None if holder == HolderState::Contradicted => Some(GcAction::Retire(Swept::Contradicted)),
        None => {
            let opened = &record.opened;
            // If the clock was changed since then, the sweep looks up the Node for a longer time, or the claim deletes
            // it.
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
    /// Sweeps all records.
    ///
    /// The sweep retires records whose machines no longer exist. If too many machines are missing at the same time, it
    /// retires only the records of machines whose deletion was observed ([`SweepReport::held_back`]). It deletes
    /// retired records whose certificates have expired, and Nodes whose name has no holder. It writes an issued
    /// certificate to its record if the stored expiry time or boot is outdated. These writes occur at most once per day
    /// for each record, or more often if certificates have a shorter validity. The earliest expiry time in the report
    /// does not depend on these writes, because it comes from records and memory.
    ///
    /// The replica that serves the cluster calls this function once per minute, while the inventory is complete and the
    /// cluster is not paused. The sweep deletes a retired record if its certificates expired before `ended_by`. This
    /// time is not later than `now`, so that a fast clock does not delete records. `now` is the time on the API server
    /// that stores the records, because records store it across restarts. `elapsed` is a monotonic time, used for
    /// absences and for the age of certificates that this process issued. `listed` contains the names of the Nodes to
    /// look up if their records were retired earlier, for example the Nodes that were listed since the last sweep. This
    /// list limits the number of calls, which then does not depend on the number of retired records. Other tasks run
    /// between pages of records.
    ///
    /// # Errors
    ///
    /// Returns an error if the records are unavailable. The report contains failures for single records. The next sweep
    /// retries these records, and failed lookups of machines.
    pub async fn sweep(
        &self,
        (now, ended_by): (SystemTime, SystemTime),
        elapsed: Duration,
        listed: &BTreeSet<String>,
    ) -> Result<SweepReport, Unavailable> {
        let mut swept = SweepReport::default();
        let all = self.records().all().await?;
        let mut pace = Pace::default();
        let mut names = BTreeSet::new();
        let mut found = Vec::with_capacity(all.len());
        let (mut missing, mut leaving) = (BTreeSet::new(), BTreeSet::new());
        let (mut unknown, mut live) = (BTreeSet::new(), 0);
        let is_missing = |holder| matches!(holder, HolderState::Gone | HolderState::Contradicted);
        for stored in &*all {
            let record = &stored.record;
            names.insert(&record.node_name);
            let holder = self.holder_state(&record.holder).await.ok();
            found.push((stored, holder));
            if record.is_live() {
                live += 1;
                if holder.is_some_and(is_missing) {
                    missing.insert(holding(record));
                    // The deletion of this missing machine might have been observed since the last sweep.
                    if self.was_deleted(&record.holder) {
                        leaving.insert(holding(record));
                    }
                } else if holder == Some(HolderState::Leaving) {
                    leaving.insert(holding(record));
                } else if holder.is_none() {
                    unknown.insert(holding(record));
                }
            }
            pace.step().await;
        }
        retain(&self.issued, |issued| issued, |name| names.contains(name)).await;
        let gone = self.absences.round(missing, (leaving, unknown), elapsed);
        let mut gone = gone.await;
        swept.held_back = self.absences.hold_back(&mut gone, live);
        let (mut overdue, mut removals) = (BTreeSet::new(), BTreeMap::new());
        for (stored, holder) in found {
            pace.step().await;
            let issued = self.last_issued(&stored.record);
            if is_overdue(issued.as_ref(), &stored.record, now) {
                overdue.insert(&stored.record.node_name);
            }
            self.write_down(&stored.record, issued.as_ref(), (now, elapsed))
                .await;
            let Some(holder) = holder else {
                swept.count(&stored.record, issued.as_ref(), now);
                continue;
            };
            let is_settled = !is_missing(holder) || gone.contains(&holding(&stored.record));
            let holder = if is_settled {
                holder
            } else {
                HolderState::Leaving
            };
            let is_listed = listed.contains(stored.record.node_name.as_str());
            let uid = match gc_action(&stored.record, holder, is_listed, (now, ended_by)) {
                None => {
                    swept.count(&stored.record, issued.as_ref(), now);
                    continue;
                }
                Some(GcAction::Retire(what)) => {
                    self.retire(stored, what, &mut swept, now).await;
                    continue;
                }
                Some(GcAction::Delete) => {
                    let deleted = self
                        .records()
                        .delete(&stored.record.node_name, &stored.version);
                    swept.note(&stored.record, written(deleted.await).map(|_| None));
                    continue;
                }
                Some(GcAction::RemoveNode) => None,
                Some(GcAction::RemoveStaleNode(uid)) => Some(uid),
            };
            swept.count(&stored.record, issued.as_ref(), now);
            let stored = stored.as_ref();
            removals.insert(&stored.record.node_name, DueRemoval { stored, uid });
        }
        self.remove_due(&removals, &mut swept, now).await;
        swept.overdue = self.count_overdue(&overdue).await;
        Ok(swept)
    }

    async fn write_down(
        &self,
        record: &Record,
        issued: Option<&LastIssued>,
        now: (SystemTime, Duration),
    ) {
        let name = &record.node_name;
        let due = |issued: &&LastIssued| is_due(issued, record, now);
        let Some(issued) = issued.filter(due).filter(|_| record.is_live()) else {
            return;
        };
        if let Err(error) = self.records().note(name, issued).await {
            tracing::debug!(
                node = name.as_str(),
                error = error_chain(&error),
                "cannot write the status of the node identity"
            );
        }
    }

    async fn retire(&self, stored: &Stored, what: Swept, swept: &mut SweepReport, now: SystemTime) {
        let Stored { record, version } = stored;
        let longest = self.policy().longest_lifetime;
        let retired = record.retired(TombstoneReason::MachineGone, longest, now);
        swept.count(&retired, None, now);
        let replaced = written(self.records().replace(&retired, version).await);
        if let Ok(Some(_)) = replaced {
            let (node, generation) = (record.node_name.as_str(), record.generation);
            cluster_line!(
                self.lines(),
                INFO,
                node,
                generation,
                "the node identity is retired"
            );
        }
        swept.note(record, replaced.map(|replaced| replaced.map(|_| what)));
    }

    /// Deletes the Nodes that are due, after the records are written: the API server of the cluster can delay these
    /// calls. The next sweep retries the Nodes that were not deleted.
    async fn remove_due(
        &self,
        due: &BTreeMap<&NodeName, DueRemoval<'_>>,
        swept: &mut SweepReport,
        now: SystemTime,
    ) {
        let removed = self.remove_nodes(due, now).await;
        let mut removed: BTreeMap<NodeName, _> = removed.into_iter().collect();
        for (&name, DueRemoval { stored, uid }) in due {
            let removed = removed.remove(name);
            let removed = removed.unwrap_or_else(|| Err(Unavailable::new(NoTimeLeft)));
            let is_retired = uid.is_none();
            if removed.is_err() && is_retired {
                swept.not_removed.insert(name.to_string());
            }
            let what = if is_retired {
                Swept::NodeRemoved
            } else {
                Swept::StaleNodeRemoved
            };
            let removed = removed.map(|removed| removed.then_some(what));
            swept.note(&stored.record, removed);
        }
    }
}

/// Returns the written value. `None` if the record changed after it was read: the next sweep then retries.
fn written<T>(written: Result<T, WriteError>) -> Result<Option<T>, Unavailable> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(WriteError::Exists | WriteError::Conflict) => Ok(None),
        Err(WriteError::Unavailable(error)) => Err(error),
    }
}

impl SweepReport {
    /// Stores the result for this record: its change, or the error.
    fn note(&mut self, record: &Record, done: Result<Option<Swept>, Unavailable>) {
        let node_name = &record.node_name;
        match done {
            Ok(what) => self.done.extend(what.map(|what| SweepAction {
                node_name: node_name.clone(),
                generation: record.generation,
                what,
            })),
            Err(error) => {
                let failed = self.failed.get_or_insert_with(|| FailedUpdates {
                    node_name: node_name.clone(),
                    error: error_chain(&error),
                    count: 0,
                });
                failed.count += 1;
            }
        }
    }

    /// Counts the record. The expiry time comes from the last `issued` certificate, if it is known.
    fn count(&mut self, record: &Record, issued: Option<&LastIssued>, now: SystemTime) {
        if !record.is_live() {
            self.tombstones += 1;
            return;
        }
        self.live += 1;
        self.attested += usize::from(record.holder.is_attested());
        if record.is_revoked() {
            // A revoked certificate cannot be renewed, so its expiry must not cause an alert.
            self.revoked += 1;
            return;
        }
        let end = issued.map_or_else(|| record.known_end(), |issued| issued.not_after);
        // The expired certificate of a machine that is switched off must not hide the expiry times of other machines'
        // certificates.
        let ends = [self.earliest_expiry, Some(end).filter(|end| *end > now)];
        self.earliest_expiry = ends.into_iter().flatten().min();
    }
}

#[cfg(test)]
mod tests;
