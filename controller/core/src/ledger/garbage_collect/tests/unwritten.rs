//! Records that cannot be written.

use super::*;
use crate::identifiers::KeyDigest;
use crate::ledger::{Record, Stored, Version, WriteError};

/// Records that are read, and not written.
#[derive(Debug)]
struct ReadOnly(Arc<MemoryRecords>);

fn away<T>() -> Result<T, WriteError> {
    Err(WriteError::Unavailable(Unavailable::new("away")))
}

#[async_trait::async_trait]
impl Records for ReadOnly {
    async fn known(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.0.known(name).await
    }

    async fn known_of_machine(
        &self,
        identity: &Identity,
        key: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        self.0.known_of_machine(identity, key).await
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        self.0.caught_up(name, version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.0.read(name).await
    }

    async fn create(&self, _: &Record) -> Result<Stored, WriteError> {
        away()
    }

    async fn replace(&self, _: &Record, _: &Version) -> Result<Stored, WriteError> {
        away()
    }

    async fn delete(&self, _: &NodeName, _: &Version) -> Result<(), WriteError> {
        away()
    }

    async fn all(&self) -> Result<Vec<Stored>, Unavailable> {
        self.0.all().await
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        self.0.note(name, issued).await
    }
}

#[test]
fn a_sweep_reports_the_number_of_records_that_it_could_not_update() {
    let mut world = World::held(policy());
    world.claims(&claim("m2", "n2", 2, 0), 0).unwrap();
    world.becomes("m1", None);
    world.becomes("m2", None);
    let ledger = RecordLedger::new(
        Arc::new(ReadOnly(world.records.clone())),
        Arc::new(StaticInventory::new(world.machines.clone()).unwrap()),
        world.nodes.clone(),
        policy(),
        Enforcement::default(),
    );
    let swept = |hour| block_on(ledger.sweep_at(at(hour), &BTreeSet::new())).unwrap();
    assert_eq!(swept(1).failed, None);

    let failed = swept(2).failed.unwrap();

    assert_eq!((failed.count, failed.node_name), (2, name("n1")));
    assert!(failed.error.ends_with("away"), "{}", failed.error);
    assert!(world.record("n1").is_live() && world.record("n2").is_live());
}
