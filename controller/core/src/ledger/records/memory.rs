//! Records that live as long as the process.

use std::collections::BTreeMap;

use futures::future::{FutureExt as _, ready};
use kubelet_attestation::names::NodeName;
use parking_lot::Mutex;

use super::{LastIssued, Record, Records, Stored, Version, WriteError, Written};
use crate::identifiers::KeyDigest;
use crate::refusal::Answer;
use crate::verifier::Identity;

/// Records in memory: a restart forgets who holds which name, so first use is trusted again.
#[derive(Debug, Default)]
pub struct MemoryRecords(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    records: BTreeMap<NodeName, Stored>,
    version: u64,
}

impl MemoryRecords {}

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

impl Records for MemoryRecords {
    fn known<'a>(&'a self, name: &'a NodeName) -> Answer<'a, Option<Stored>> {
        self.read(name)
    }

    fn known_of_machine<'a>(
        &'a self,
        identity: &'a Identity,
        key: KeyDigest,
    ) -> Answer<'a, Vec<Stored>> {
        let found = self
            .0
            .lock()
            .records
            .values()
            .filter(|stored| stored.record.concerns(identity, key))
            .cloned()
            .collect();
        ready(Ok(found)).boxed()
    }

    fn caught_up<'a>(&'a self, _name: &'a NodeName, _version: &'a Version) -> Answer<'a, ()> {
        ready(Ok(())).boxed()
    }

    fn read<'a>(&'a self, name: &'a NodeName) -> Answer<'a, Option<Stored>> {
        let read = self.0.lock().records.get(name).cloned();
        ready(Ok(read)).boxed()
    }

    fn create<'a>(&'a self, record: &'a Record) -> Written<'a, Stored> {
        let mut state = self.0.lock();
        if state.records.contains_key(&record.node_name) {
            return ready(Err(WriteError::Exists)).boxed();
        }
        ready(Ok(state.put(record))).boxed()
    }

    fn replace<'a>(&'a self, record: &'a Record, read: &'a Version) -> Written<'a, Stored> {
        let mut state = self.0.lock();
        if !state.is(&record.node_name, read) {
            return ready(Err(WriteError::Conflict)).boxed();
        }
        ready(Ok(state.put(record))).boxed()
    }

    fn delete<'a>(&'a self, name: &'a NodeName, read: &'a Version) -> Written<'a, ()> {
        let mut state = self.0.lock();
        if !state.is(name, read) {
            return ready(Err(WriteError::Conflict)).boxed();
        }
        state.records.remove(name);
        ready(Ok(())).boxed()
    }

    fn all(&self) -> Answer<'_, Vec<Stored>> {
        let all = self.0.lock().records.values().cloned().collect();
        ready(Ok(all)).boxed()
    }

    fn note<'a>(&'a self, name: &'a NodeName, issued: &'a LastIssued) -> Answer<'a, ()> {
        let mut state = self.0.lock();
        if let Some(stored) = state.records.get_mut(name)
            && stored.record.generation == issued.generation
        {
            let until = &mut stored.record.renewed_until;
            *until = (*until).max(Some(issued.not_after));
            stored.record.renewed_boot = issued.seen_boot().or(stored.record.renewed_boot);
        }
        ready(Ok(())).boxed()
    }
}
