//! The store of records.

use std::fmt::Debug;
use std::time::SystemTime;

use kubelet_attestation::names::NodeName;

use super::record::whole_seconds;
use super::{Record, SeenBoot};
use crate::identifiers::KeyDigest;
use crate::refusal::Unavailable;
use crate::verifier::{Identity, TpmBoot};

mod memory;
mod rehearsal;

pub use memory::MemoryRecords;
pub use rehearsal::Rehearsal;

/// Keeps the records of one cluster, one a node name.
///
/// # Guarantees that an implementation gives
///
/// - [`create`](Self::create) makes a record only where there is none, and
///   [`replace`](Self::replace) changes one only if it still is what was read.
/// - What is [known](Self::known) may lag behind, by a minute at most, but never runs back: what was
///   not heard of for so long is [`Unavailable`].
/// - Every call has a deadline; an outage is [`Unavailable`].
#[async_trait::async_trait]
pub trait Records: Debug + Send + Sync {
    /// The record of this name, as a cache has it.
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable>;

    /// The records of this machine, those of its TPM and those of this key, buried ones among them, as
    /// a cache has them.
    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable>;

    /// Waits until the cache has everything that was written before this version of this record,
    /// the version itself included.
    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable>;

    /// The record of this name, as it is.
    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable>;

    /// Makes a record.
    async fn create(&self, record: &Record) -> Result<Stored, WriteError>;

    /// Writes a record over the version of it that was read.
    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError>;

    /// Deletes a record if it still is of this version.
    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError>;

    /// All records, as a cache has them.
    async fn all(&self) -> Result<Vec<Stored>, Unavailable>;

    /// Writes down that a node presented a certificate of a later generation than its record has. It is for people, who
    /// can reset the record; its loss is harmless. The default keeps nothing.
    async fn note_later(&self, _name: &NodeName, _generation: u64) -> Result<(), Unavailable> {
        Ok(())
    }

    /// Writes the last certificate of a record: its end and the boot of the machine's TPM, which decisions use, and the
    /// rest for people.
    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable>;
}

/// A record as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: Record,
    /// Its version.
    pub version: Version,
}

/// A version of one record. It means something only to what keeps the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// The version of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The certificate that a node was last issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastIssued {
    /// Its generation.
    pub generation: u64,
    /// Its serial number, in hexadecimal.
    pub serial: String,
    /// Its end.
    pub not_after: SystemTime,
    /// The time of its issue.
    pub time: SystemTime,
    /// The boot of the machine's TPM.
    pub boot: Option<TpmBoot>,
}

impl LastIssued {
    /// The boot of the machine's TPM that was seen.
    pub fn seen_boot(&self) -> Option<SeenBoot> {
        let at = whole_seconds(self.time);
        self.boot.map(|boot| SeenBoot { boot, at })
    }
}

/// A record was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// There is a record of the name; nothing was written.
    #[error("the record exists already")]
    Exists,
    /// The record is not what was read; nothing was written.
    #[error("the record has changed meanwhile")]
    Conflict,
    /// It is not known whether anything was written.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}
