//! The store of records.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_attestation::names::NodeName;

use super::record::whole_seconds;
use super::{Record, SeenBoot};
use crate::identifiers::{KeyDigest, RecordUid};
use crate::refusal::Unavailable;
use crate::verifier::{Identity, TpmBoot};

mod memory;
mod rehearsal;

pub use memory::MemoryRecords;
pub use rehearsal::Rehearsal;

/// Stores the records of one cluster, one for each node name.
///
/// # Guarantees of an implementation
///
/// - [`create`](Self::create) creates a record only if the name has none. [`replace`](Self::replace) replaces a record
///   only if it has not changed since the read.
/// - The result of [`known`](Self::known) lags by at most one minute, and is never older than a previous result. If the
///   cache has received no update for a longer time, the result is [`Unavailable`].
/// - Every call has a deadline. An outage results in the error [`Unavailable`].
#[async_trait::async_trait]
pub trait Records: Debug + Send + Sync {
    /// Returns the record for this name from the cache.
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable>;

    /// Returns the records for this machine, its TPM and this key from the cache, including retired records.
    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable>;

    /// Returns the records with this UID from the cache, including retired records. If a record is invalid, its UID is
    /// unknown, and the result is [`Unavailable`].
    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable>;

    /// Waits until the cache contains this version of the record with this name, and all earlier writes.
    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable>;

    /// Returns the record for this name from the store.
    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable>;

    /// Creates a record.
    async fn create(&self, record: &Record) -> Result<Stored, WriteError>;

    /// Replaces the record if it still has the version that was read.
    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError>;

    /// Deletes the record if it still has this version.
    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError>;

    /// Returns each record in the cache exactly once. For a record that changes during the call, the result contains
    /// either the old or the new state.
    async fn all(&self) -> Result<AllRecords, Unavailable>;

    /// Returns the first invalid record, and the number of other invalid records. The default implementation has no
    /// invalid records.
    fn invalid(&self) -> Option<String> {
        None
    }

    /// Notes that a node presented a certificate with a later generation than its record, so that operators can reset
    /// the record. A lost note does not affect decisions. The default implementation does not store the note.
    async fn note_later(&self, _name: &NodeName, _generation: u64) -> Result<(), Unavailable> {
        Ok(())
    }

    /// Writes data about the last certificate to a record: its expiry time and the boot of the machine's TPM, which
    /// affect decisions, and other fields for operators.
    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable>;
}

/// All records of a cluster. A clone takes constant time.
pub type AllRecords = Arc<[Arc<Stored>]>;

/// A stored record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: Record,
    /// The version of the record.
    pub version: Version,
}

/// The version of one record. Only the store interprets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// Creates a version from its text.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The last certificate that was issued to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastIssued {
    /// The generation.
    pub generation: u64,
    /// The serial number, in hexadecimal.
    pub serial: String,
    /// The expiry time.
    pub not_after: SystemTime,
    /// The time of issue.
    pub time: SystemTime,
    /// The time of issue, on the monotonic clock of the process.
    pub elapsed: Duration,
    /// The start counters and clock of the machine's TPM.
    pub boot: Option<TpmBoot>,
}

impl LastIssued {
    /// The TPM boot of this certificate, with the time at which it was observed.
    pub fn seen_boot(&self) -> Option<SeenBoot> {
        let at = whole_seconds(self.time);
        self.boot.map(|boot| SeenBoot { boot, at })
    }
}

/// An error from a write.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The name already has a record. The record was not written.
    #[error("the node identity already exists")]
    Exists,
    /// The record changed since it was read. The record was not written.
    #[error("the node identity has changed since it was read")]
    Conflict,
    /// The result of the write is not known.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}
