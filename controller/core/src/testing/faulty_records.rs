//! In-memory records with a fault.

use std::sync::Arc;

use kubelet_attestation::ensure;
use kubelet_attestation::names::{NodeName, ProviderId};

use crate::identifiers::{KeyDigest, RecordUid};
use crate::ledger::{
    AllRecords, LastIssued, MemoryRecords, Record, Records, Stored, Version, WriteError,
};
use crate::refusal::Unavailable;
use crate::verifier::Identity;

/// A fault of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The cache does not contain any records yet.
    Uncached,
    /// The cache contains each tombstone as the record before it was retired.
    Outdated,
    /// The cache finds each tombstone by its name, as the record before it was retired.
    Unretired,
    /// The cache finds each record by its name, with the provider ID of another machine.
    FormerHolder,
    /// Reads do not update the cache.
    NeverCaughtUp,
    /// All writes fail.
    ReadOnly,
    /// After a replacement, the generation is the next number, regardless of the claim.
    NextGeneration,
    /// A record is written, but the answer is lost.
    AnswerLost,
}

/// Records that return or cause this fault.
#[derive(Debug)]
pub struct FaultyRecords(pub Arc<MemoryRecords>, pub Fault);

impl FaultyRecords {
    fn written(&self) -> Result<&MemoryRecords, Unavailable> {
        ensure!(self.1 != Fault::ReadOnly, Unavailable::new("away"));
        Ok(&self.0)
    }
}

#[async_trait::async_trait]
impl Records for FaultyRecords {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let mut known = self.0.known(name).await?;
        if let Some(stored) = known.as_mut().filter(|_| self.1 == Fault::Unretired) {
            stored.record.tombstone = None;
        }
        if let Some(stored) = known.as_mut().filter(|_| self.1 == Fault::FormerHolder) {
            stored.record.holder.provider_id = ProviderId::parse("metal:///former").unwrap();
        }
        Ok(known.filter(|_| self.1 != Fault::Uncached))
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        let mut known = self.0.known_of_machine(identity, key).await?;
        known.retain(|_| self.1 != Fault::Uncached);
        if self.1 == Fault::Outdated {
            for stored in &mut known {
                stored.record.tombstone = None;
            }
        }
        Ok(known)
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        self.0.known_of_uid(uid).await
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        ensure!(self.1 != Fault::NeverCaughtUp, Unavailable::new("behind"));
        self.0.caught_up(name, version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.0.read(name).await
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        self.written()?.create(record).await
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        let mut record = record.clone();
        if self.1 == Fault::NextGeneration {
            let former = self.0.read(&record.node_name).await?;
            let former = former.map_or(0, |former| former.record.generation);
            record.generation = record.generation.min(former + 1);
        }
        let written = self.written()?.replace(&record, read).await;
        ensure!(
            self.1 != Fault::AnswerLost,
            Unavailable::new("no answer").into()
        );
        written
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        self.written()?.delete(name, read).await
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.0.all().await
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        self.written()?.note(name, issued).await
    }
}
