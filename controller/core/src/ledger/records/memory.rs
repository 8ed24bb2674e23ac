//! Records in the memory of the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;

use super::{AllRecords, LastIssued, Record, Records, Stored, Version, WriteError};
use crate::identifiers::{KeyDigest, RecordUid};
use crate::refusal::Unavailable;
use crate::unshared::Unshared;
use crate::verifier::Identity;

/// The records of one cluster in memory. If the process restarts, the holders of all names are lost, and the first
/// claim to each name is trusted again.
#[derive(Debug, Default)]
pub struct MemoryRecords(Unshared<State>);

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<NodeName, Stored>,
    /// The generations from [`Records::note_later`].
    later: BTreeMap<NodeName, u64>,
    version: u64,
}

impl State {
    fn put(&mut self, record: &Record) -> Stored {
        self.version = self.version.saturating_add(1);
        let stored = Stored {
            record: record.clone(),
            version: Version::new(self.version.to_string()),
        };
        self.records
            .insert(record.node_name.clone(), stored.clone());
        stored
    }

    fn is(&self, name: &NodeName, version: &Version) -> bool {
        let stored = self.records.get(name);
        stored.is_some_and(|stored| stored.version == *version)
    }
}

impl MemoryRecords {
    /// The generation from [`Records::note_later`].
    pub fn later(&self, name: &NodeName) -> Option<u64> {
        self.0.lock().later.get(name).copied()
    }
}

#[async_trait::async_trait]
impl Records for MemoryRecords {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.read(name).await
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        let found = self
            .0
            .lock()
            .records
            .values()
            .filter(|stored| stored.record.concerns(identity, key))
            .cloned()
            .collect();
        Ok(found)
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        let state = self.0.lock();
        let found = state.records.values().filter(|one| one.record.uid == uid);
        Ok(found.cloned().collect())
    }

    async fn caught_up(&self, _name: &NodeName, _version: &Version) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        let read = self.0.lock().records.get(name).cloned();
        Ok(read)
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        let mut state = self.0.lock();
        if state.records.contains_key(&record.node_name) {
            return Err(WriteError::Exists);
        }
        Ok(state.put(record))
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        let mut state = self.0.lock();
        ensure!(state.is(&record.node_name, read), WriteError::Conflict);
        Ok(state.put(record))
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        let mut state = self.0.lock();
        ensure!(state.is(name, read), WriteError::Conflict);
        state.records.remove(name);
        Ok(())
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        let state = self.0.lock();
        Ok(state.records.values().cloned().map(Arc::new).collect())
    }

    async fn note_later(&self, name: &NodeName, generation: u64) -> Result<(), Unavailable> {
        self.0.lock().later.insert(name.clone(), generation);
        Ok(())
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        let mut state = self.0.lock();
        if let Some(stored) = state.records.get_mut(name)
            && stored.record.generation == issued.generation
        {
            let until = &mut stored.record.renewed_until;
            *until = (*until).max(Some(issued.not_after));
            stored.record.renewed_boot = issued.seen_boot().or(stored.record.renewed_boot);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
