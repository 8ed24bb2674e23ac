//! Publishes the revocation list in the workload cluster.

use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, SystemTime};

use futures::future::FutureExt as _;
use kube::Client;
use kubelet_attestation::ensure;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::RevokedNodeCredentialsSpec;
use node_attestation_core::ledger::{
    AllRecords, PresentTime, RecordLedger, RecordRevocations, Revocations, Stored,
};
use node_attestation_core::log_lines::LogLines;
use tokio::time::Instant;

use super::created_again::compare;
use super::{PartError, part};
use crate::capi::ObjectKey;
use crate::hardening::exempt_overlaps::ExemptOverlaps;
use crate::hardening::revocation::{self, Revocation};
use crate::logs::Failures;
use crate::memory::{Holding, Share};
use crate::records::KubeRecords;
use crate::turns::{FairTurns, Line, TurnLimits};

/// The interval for comparing a non-empty list with the workload cluster, in which administrators can change the list.
/// A comparison takes four calls, so with this interval, the controller makes less than one call per minute to an idle
/// cluster.
const COMPARED_AGAIN: Duration = Duration::from_mins(10);

/// The memory that is reserved for each cluster's list, which is enough for a few thousand entries.
const OWN_MEMORY: usize = 256 * 1024;

/// An upper bound for the memory that a record's entry uses: its UID, its values, and its place in a map.
const RECORD_ENTRY: usize = 160;

/// An upper bound for the memory that a key's entry uses, if its name and provider ID have the maximum length.
const KEY_ENTRY: usize = 1536;

/// The number of copies of a list while it is written: the known list, the object, its replacement and its JSON.
const COPIES: usize = 4;

/// The turns for lists whose copies do not fit into the reserved memory. Such a list is written when it gets a turn, so
/// that other clusters' lists cannot prevent a revocation. A tenant's API server can return a large list, and then
/// never answer the write.
const WITHOUT_MEMORY: TurnLimits = TurnLimits {
    all: 4,
    of_cluster: 1,
};

/// The turns of all clusters of this process.
static PROCESS: LazyLock<FairTurns> = LazyLock::new(|| FairTurns::new(WITHOUT_MEMORY));

/// The workload cluster does not have the complete list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RevocationListError {
    /// The list could not be read or written.
    #[error(transparent)]
    Part(#[from] PartError),
    /// This number of records and keys does not fit into the list.
    #[error("the list is full: the certificates or keys of {0} node identities are not refused")]
    Full(usize),
    /// The list in the workload cluster is too large to be kept in memory.
    #[error(
        "the list in the workload cluster has {records} node identities and {keys} keys, which exceed the available memory: other \
         clusters also have large lists. Delete the entries that the controller did not create"
    )]
    TooLarge { records: usize, keys: usize },
}

/// The published list.
#[derive(derive_more::Debug)]
pub(super) struct RevocationList {
    published: Option<Published>,
    #[debug(skip)]
    wanted: Option<Wanted>,
    /// The Cluster, until the check whether the Cluster was recreated is complete.
    unknown: Option<Box<OfCluster>>,
    /// The error, if the permission for this check is missing.
    forbidden: Option<PartError>,
    failures: Failures,
    /// The memory that the workload cluster's list uses.
    memory: Holding,
    /// The cluster's queue for the turns of lists without memory.
    line: Line,
}

impl Default for RevocationList {
    fn default() -> Self {
        let line = PROCESS.line(&ObjectKey::new("", ""));
        Self::within(&Share::new("", OWN_MEMORY), line)
    }
}

/// The management cluster's objects with which the workload cluster is compared.
#[derive(derive_more::Debug)]
pub(in crate::management) struct OfCluster {
    #[debug(skip)]
    pub(in crate::management) management: Client,
    /// The `KubeletAuthentication`.
    pub(in crate::management) key: ObjectKey,
    pub(in crate::management) records: Arc<KubeRecords>,
    /// The UID of the Cluster.
    pub(in crate::management) uid: String,
    /// The certificates of its exempt Nodes.
    pub(in crate::management) overlaps: ExemptOverlaps,
}

#[derive(Debug)]
struct Published {
    at: Instant,
    records: Arc<RevokedNodeCredentialsSpec>,
    /// The lowest valid generation that an operator set.
    floor: u64,
    /// The number of records that are not in the list.
    left_out: usize,
}

/// The list that the records require. It is computed only after a change, because a tenant determines the number of
/// records.
struct Wanted {
    /// The records, as a reference that does not keep them in memory.
    records: Weak<[Arc<Stored>]>,
    /// The maximum validity of a certificate in the policy.
    longest: Duration,
    at: SystemTime,
    /// The earliest expiry time of an entry.
    first_end: Option<SystemTime>,
    /// The entries that fit into an object.
    list: Arc<RevokedNodeCredentialsSpec>,
    /// The number of records and keys that do not fit into the object.
    left_out: usize,
}

impl Wanted {
    async fn read(records: &AllRecords, longest: Duration, now: impl Into<PresentTime>) -> Self {
        let now = now.into();
        let read = RecordRevocations::read(records, longest, now).await;
        let (list, revocation) = revocation::select(read.list);
        Self {
            records: Arc::downgrade(records),
            longest,
            at: now.earlier,
            first_end: read.first_end,
            list: Arc::new(list),
            left_out: revocation.left_out,
        }
    }

    /// Whether this list is still valid at `now`, for these records.
    fn is_of(&self, records: &AllRecords, longest: Duration, now: SystemTime) -> bool {
        let is_before_end = self.first_end.is_none_or(|end| now < end);
        // If the clock was set back, the list is computed again.
        self.at <= now
            && is_before_end
            && self.longest == longest
            && self.records.ptr_eq(&Arc::downgrade(records))
    }
}

impl RevocationList {
    /// Creates a list whose memory is charged to this share, and that waits in this line if its copies do not fit.
    fn within(share: &Share, line: Line) -> Self {
        Self {
            published: None,
            wanted: None,
            unknown: None,
            forbidden: None,
            failures: Failures::default(),
            memory: share.holding(),
            line,
        }
    }

    /// Creates the list for the workload cluster of this Cluster.
    pub(super) fn of_cluster(cluster: OfCluster) -> Self {
        let share = Share::new(&cluster.key.namespace, OWN_MEMORY);
        let list = Self::within(&share, PROCESS.line(&cluster.key));
        Self {
            unknown: Some(Box::new(cluster)),
            ..list
        }
    }

    /// Forces the next call to compare the list with the workload cluster.
    pub(super) fn forget(&mut self) {
        self.published = None;
    }

    /// Publishes the revoked certificates from these records. Makes no calls if the list is complete and was compared
    /// recently.
    ///
    /// # Errors
    ///
    /// Returns an error if the workload cluster does not have the complete list.
    pub(super) async fn publish(
        &mut self,
        client: &Client,
        (records, ledger): (AllRecords, &RecordLedger),
        now: impl Into<PresentTime>,
    ) -> Result<(), RevocationListError> {
        let (revocations, now) = (ledger.revocations(), now.into());
        self.compare(client, revocations, now).boxed().await?;
        let longest = ledger.policy().longest_lifetime;
        let known = self.wanted.take();
        let wanted = match known.filter(|known| known.is_of(&records, longest, now.earlier)) {
            Some(known) => known,
            None => Wanted::read(&records, longest, now).boxed().await,
        };
        // A tenant's API server can delay the calls below. Deleted records must not stay in memory in the meantime.
        drop(records);
        let (records, beyond) = (wanted.list.clone(), wanted.left_out);
        self.wanted = Some(wanted);
        let floor = revocations.decisions().floor;
        let is_current = |published: &&Published| {
            let is_same = Arc::ptr_eq(&published.records, &records) || published.records == records;
            let is_same = is_same && published.floor == floor;
            // If the list has no entries, there is nothing to restore.
            let is_recent = revocations.is_empty() || published.at.elapsed() < COMPARED_AGAIN;
            revocations.is_read() && is_same && is_recent
        };
        let left_out = if let Some(current) = self.published.as_ref().filter(is_current) {
            current.left_out
        } else {
            let applied = self.apply(client, revocations, &records, now.earlier);
            let left_out = applied.boxed().await?.left_out;
            self.published = Some(Published {
                at: Instant::now(),
                records,
                floor,
                left_out,
            });
            left_out
        };
        let left_out = left_out + beyond;
        ensure!(left_out == 0, RevocationListError::Full(left_out));
        let forbidden = self.forbidden.clone().map(RevocationListError::from);
        forbidden.map_or(Ok(()), Err)
    }

    /// Reads and writes the list, and reserves its memory.
    async fn apply(
        &mut self,
        client: &Client,
        revocations: &Revocations,
        records: &RevokedNodeCredentialsSpec,
        now: SystemTime,
    ) -> Result<Revocation, RevocationListError> {
        let merge = || part(revocation::merged(client, revocations, records, now));
        let mut merged = merge().await?;
        let len = (merged.revoked.len(), merged.revoked_keys.len());
        let mut turn = None;
        if !self.reserve(len, COPIES) {
            drop(merged);
            turn = Some(self.line.turn().await);
            merged = merge().await?;
        }
        let written = part(revocation::write(client, revocations, merged)).await;
        drop(turn);
        self.hold(revocations)?;
        Ok(written?)
    }

    /// Reserves memory for copies of a list with these numbers of entries. If there is not enough memory, returns
    /// `false` and does not change the reservation.
    fn reserve(&mut self, (records, keys): (usize, usize), copies: usize) -> bool {
        let one = records * RECORD_ENTRY + keys * KEY_ENTRY;
        self.memory.resize(copies * one)
    }

    /// Reserves the memory for the known list. If there is not enough memory, only this cluster waits.
    fn hold(&mut self, revocations: &Revocations) -> Result<(), RevocationListError> {
        let (records, keys) = revocations.len();
        if self.reserve((records, keys), 1) {
            return Ok(());
        }
        revocations.forget();
        Err(RevocationListError::TooLarge { records, keys })
    }

    /// Compares the workload cluster with the first workload cluster. If the permission is missing, requests are still
    /// served.
    async fn compare(
        &mut self,
        workload: &Client,
        revocations: &Revocations,
        now: PresentTime,
    ) -> Result<(), PartError> {
        let Some(cluster) = &self.unknown else {
            return Ok(());
        };
        let of_management = (&cluster.management, &cluster.key);
        let has_records = cluster.records.has_any_of(&cluster.uid).boxed();
        let compared = compare(workload, of_management, has_records, revocations, now).await;
        self.forbidden = match compared {
            Ok(()) => None,
            Err(error) if error.is_forbidden() => Some(PartError::of(&error)),
            Err(error) => return Err(PartError::of(&error)),
        };
        self.unknown = None;
        Ok(())
    }

    /// Whether the list has been published since the last [`forget`](Self::forget).
    pub(super) fn is_published(&self) -> bool {
        self.published.is_some()
    }

    /// Logs the result of an attempt between two rounds.
    pub(super) fn log(&mut self, tried: Result<(), RevocationListError>, lines: &dyn LogLines) {
        let Err(error) = tried else {
            return self.failures.end();
        };
        let error = error.to_string();
        if self.failures.is_first() {
            cluster_line!(
                lines,
                WARN,
                error,
                "cannot update the list of revoked certificates; the controller retries"
            );
        } else {
            tracing::debug!(error, "cannot update the list of revoked certificates yet");
        }
    }
}

#[cfg(test)]
mod tests;
