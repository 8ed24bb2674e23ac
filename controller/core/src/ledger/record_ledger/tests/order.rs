//! Tests of the order of the calls in a claim.

use std::sync::Arc;

use kubelet_attestation::names::NodeName;

use super::*;
use crate::identifiers::{KeyDigest, RecordUid};
use crate::ledger::{
    AllRecords, LastIssued, MemoryRecords, Record, Records, Stored, Version, WriteError,
};
use crate::refusal::Unavailable;
use crate::testing::records::renewal;
use crate::unshared::Unshared;
use crate::verifier::Identity;

/// These records, which also store the order of some calls.
#[derive(Debug, Default)]
struct Noted {
    records: Arc<MemoryRecords>,
    calls: Unshared<Vec<&'static str>>,
}

impl Noted {
    fn note_call(&self, call: &'static str) {
        self.calls.lock().push(call);
    }
}

#[async_trait::async_trait]
impl Records for Noted {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.records.known(name).await
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        self.note_call("of machine");
        self.records.known_of_machine(identity, key).await
    }

    async fn known_of_uid(&self, uid: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        self.note_call("of UID");
        self.records.known_of_uid(uid).await
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        self.records.caught_up(name, version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        if name.as_str() == "other" {
            self.note_call("read");
        }
        self.records.read(name).await
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        self.records.create(record).await
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        self.records.replace(record, read).await
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        self.records.delete(name, read).await
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        self.records.all().await
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        self.records.note(name, issued).await
    }
}

#[test]
fn the_records_of_a_machine_are_copied_after_the_reads_for_a_uid() {
    let world = World::held(LedgerPolicy {
        adoption: Adoption::Recover,
        ..policy()
    });
    let lost = block_on(world.records.read(&name("n1"))).unwrap().unwrap();
    block_on(world.records.delete(&name("n1"), &lost.version)).unwrap();
    let mut other = lost.record;
    other.node_name = name("other");
    let other = other.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    block_on(world.records.create(&other)).unwrap();
    let noted = Arc::new(Noted {
        records: world.records.clone(),
        ..Noted::default()
    });
    let ledger = world.ledger_over(noted.clone());

    let renewed = block_on(ledger.renew(&renewal("m1", 1, 2), at(2)));

    let Err(Refusal::Deny(denial)) = renewed else {
        panic!("not denied: {renewed:?}")
    };
    assert_eq!(denial.reason(), "FormerCertificate");
    let calls = noted.calls.lock();
    assert!(!calls.is_empty());
    for step in calls.chunks(3) {
        assert_eq!(step, ["of UID", "read", "of machine"]);
    }
}
