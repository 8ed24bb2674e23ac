//! The list of revoked certificates of one cluster, as it was published there.

use std::time::{Duration, SystemTime};

use futures::future::FutureExt as _;
use kube::Client;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::RevokedNodeCredentialsSpec;
use node_attestation_core::ledger::{RecordLedger, Revocations, Stored};
use tokio::time::Instant;

use super::created_again::compare;
use super::{cut, part};
use crate::capi::ObjectKey;
use crate::hardening::revocation;
use crate::logs::Failures;
use crate::memory::{Holding, Share};

/// The time until a list with entries is compared with the workload cluster again: its administrators can change it. A
/// comparison is four calls, and an idle cluster has less than one call a minute.
const COMPARED_AGAIN: Duration = Duration::from_mins(10);

/// The memory of a list that no other cluster takes: some thousand entries.
const OWN_MEMORY: usize = 256 * 1024;

/// An upper bound of the memory of an entry of a record: its UID, its values, and its place in a map.
const RECORD_ENTRY: usize = 160;

/// The same of an entry of a key, with a name and a provider ID of the longest kind.
const KEY_ENTRY: usize = 1536;

/// The published list.
#[derive(derive_more::Debug)]
pub(super) struct RevocationList {
    published: Option<Published>,
    /// The management cluster and the `KubeletAuthentication`, until it is known whether the Cluster was created again.
    #[debug(skip)]
    unknown: Option<(Client, ObjectKey)>,
    /// The right that is missing to know it.
    forbidden: Option<String>,
    failures: Failures,
    /// The memory that the list of the workload cluster takes.
    memory: Holding,
}

impl Default for RevocationList {
    fn default() -> Self {
        Self::within(&Share::new("", OWN_MEMORY))
    }
}

#[derive(Debug)]
struct Published {
    at: Instant,
    records: RevokedNodeCredentialsSpec,
    /// The floor that an operator decided on.
    floor: u64,
    /// The number of records that are not in the list.
    left_out: usize,
}

impl RevocationList {
    /// A list that is held in this memory.
    fn within(share: &Share) -> Self {
        Self {
            published: None,
            unknown: None,
            forbidden: None,
            failures: Failures::default(),
            memory: share.holding(),
        }
    }

    /// The list of the workload cluster of this `KubeletAuthentication`.
    pub(super) fn of_authentication(management: Client, key: ObjectKey) -> Self {
        let list = Self::within(&Share::new(&key.namespace, OWN_MEMORY));
        Self {
            unknown: Some((management, key)),
            ..list
        }
    }

    /// Has the next call compare the list with the workload cluster.
    pub(super) fn forget(&mut self) {
        self.published = None;
    }

    /// Publishes the revoked certificates of these records. It costs no call if the list has them, and was compared
    /// lately.
    ///
    /// # Errors
    ///
    /// The workload cluster does not have the whole list.
    pub(super) async fn publish(
        &mut self,
        client: &Client,
        (records, ledger): (Vec<Stored>, &RecordLedger),
        now: SystemTime,
    ) -> Result<(), String> {
        let revocations = ledger.revocations();
        self.compare(client, revocations, now).boxed().await?;
        let longest = ledger.policy().longest_lifetime;
        let records = records.iter().map(|stored| &stored.record);
        let records = RevokedNodeCredentialsSpec::of_records(records, longest, now);
        let floor = revocations.decisions().floor;
        let is_current = |published: &&Published| {
            let is_same = published.records == records && published.floor == floor;
            // Without entries there is nothing to restore.
            let is_recent = revocations.is_empty() || published.at.elapsed() < COMPARED_AGAIN;
            revocations.is_read() && is_same && is_recent
        };
        let left_out = if let Some(current) = self.published.as_ref().filter(is_current) {
            current.left_out
        } else {
            let applied = revocation::apply(client, revocations, &records, now).boxed();
            let left_out = part(applied).await?.left_out;
            self.hold(revocations)?;
            self.published = Some(Published {
                at: Instant::now(),
                records,
                floor,
                left_out,
            });
            left_out
        };
        if left_out > 0 {
            return Err(format!(
                "the list is full: the certificates or keys of {left_out} records are not refused"
            ));
        }
        self.forbidden.clone().map_or(Ok(()), Err)
    }

    /// Takes the memory of the known list. Without it, this cluster waits, and no other.
    fn hold(&mut self, revocations: &Revocations) -> Result<(), String> {
        let (records, keys) = revocations.len();
        if self
            .memory
            .resize(records * RECORD_ENTRY + keys * KEY_ENTRY)
        {
            return Ok(());
        }
        revocations.forget();
        Err(format!(
            "the list in the workload cluster has {records} records and {keys} keys, for which there is no memory: other \
             clusters have large lists, too. Delete the entries of this list that are not the controller's"
        ))
    }

    /// Compares the workload cluster with the one that was served first. Without the right, requests are answered.
    async fn compare(
        &mut self,
        workload: &Client,
        revocations: &Revocations,
        now: SystemTime,
    ) -> Result<(), String> {
        let Some((management, key)) = &self.unknown else {
            return Ok(());
        };
        let compared = compare(workload, (management, key), revocations, now).await;
        self.forbidden = match compared {
            Ok(()) => None,
            Err(error) if error.is_forbidden() => Some(cut(error_chain(&error))),
            Err(error) => return Err(cut(error_chain(&error))),
        };
        self.unknown = None;
        Ok(())
    }

    /// Whether it was published since the last [`forget`](Self::forget).
    pub(super) fn is_published(&self) -> bool {
        self.published.is_some()
    }

    /// Logs the end of a try between two rounds.
    pub(super) fn log(&mut self, tried: Result<(), String>) {
        let Err(error) = tried else {
            return self.failures.end();
        };
        if self.failures.is_first() {
            tracing::warn!(
                error,
                "the list of revoked certificates cannot be updated; it is tried again"
            );
        } else {
            tracing::debug!(
                error,
                "the list of revoked certificates cannot be updated yet"
            );
        }
    }
}

#[cfg(test)]
mod tests;
