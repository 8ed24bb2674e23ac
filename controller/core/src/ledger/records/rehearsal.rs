//! Records whose writes remain in memory.

use std::sync::Arc;

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;

use super::{AllRecords, LastIssued, MemoryRecords, Record, Records, Stored, Version, WriteError};
use crate::identifiers::{KeyDigest, RecordUid};
use crate::refusal::Unavailable;
use crate::verifier::Identity;

/// The version prefix of records in memory. Versions of stored records do not have this prefix.
const REHEARSED: &str = "rehearsed-";

/// An overlay over the records of a cluster, for [explanations](crate::decide::explain). Writes remain in memory.
#[derive(Debug)]
pub struct Rehearsal {
    actual: Arc<dyn Records>,
    written: MemoryRecords,
}

impl Rehearsal {
    /// Creates an overlay, which never writes to `actual`.
    pub fn over(actual: Arc<dyn Records>) -> Self {
        Self {
            actual,
            written: MemoryRecords::default(),
        }
    }

    /// Returns the record from the overlay if it has one, and `actual` otherwise.
    async fn over_it(&self, actual: Option<Stored>, name: &NodeName) -> Option<Stored> {
        let written = self.written.read(name).await.ok().flatten();
        written.map(rehearsed).or(actual)
    }

    /// Returns these records from the overlay, and those in `actual` whose names the overlay does not have.
    async fn over_all(
        &self,
        actual: Vec<Stored>,
        written: Vec<Stored>,
    ) -> Result<Vec<Stored>, Unavailable> {
        let all = self.written.all().await?;
        let mut found: Vec<_> = written.into_iter().map(rehearsed).collect();
        found.extend(actual.into_iter().filter(|stored| {
            let name = &stored.record.node_name;
            all.iter().all(|other| other.record.node_name != *name)
        }));
        Ok(found)
    }
}

fn rehearsed(stored: Stored) -> Stored {
    Stored {
        version: Version::new(format!("{REHEARSED}{}", stored.version.as_str())),
        ..stored
    }
}

#[async_trait::async_trait]
impl Records for Rehearsal {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let actual = self.actual.known(name).await?;
        Ok(self.over_it(actual, name).await)
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        let actual = self.actual.known_of_machine(identity, key).await?;
        let written = self.written.known_of_machine(identity, key).await?;
        self.over_all(actual, written).await
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        let actual = self.actual.known_of_uid(uid).await?;
        let written = self.written.known_of_uid(uid).await?;
        self.over_all(actual, written).await
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        if version.as_str().starts_with(REHEARSED) {
            return Ok(());
        }
        self.actual.caught_up(name, version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let actual = self.actual.read(name).await?;
        Ok(self.over_it(actual, name).await)
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        let known = self.read(&record.node_name).await?;
        ensure!(known.is_none(), WriteError::Exists);
        self.written.create(record).await.map(rehearsed)
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        let known = self.read(&record.node_name).await?;
        let is_it = known.is_some_and(|known| known.version == *read);
        ensure!(is_it, WriteError::Conflict);
        let written = match read.as_str().strip_prefix(REHEARSED) {
            Some(version) => self.written.replace(record, &Version::new(version)).await,
            None => self.written.create(record).await,
        };
        written.map(rehearsed)
    }

    /// A decision never deletes a record.
    async fn delete(&self, _name: &NodeName, _read: &Version) -> Result<(), WriteError> {
        Err(WriteError::Conflict)
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.actual.all().await
    }

    async fn note(&self, _name: &NodeName, _issued: &LastIssued) -> Result<(), Unavailable> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
