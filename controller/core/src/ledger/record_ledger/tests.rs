use futures::executor::block_on;

use super::*;
use crate::identifiers::KeyDigest;
use crate::ledger::{MemoryRecords, Version};
use crate::testing::records::{World, at, claim, insecure, policy, provider_id};
use crate::verifier::Identity;

/// Records of which the cache has none yet.
#[derive(Debug)]
struct Uncached(Arc<MemoryRecords>);

#[async_trait::async_trait]
impl Records for Uncached {
    async fn known(&self, _: &NodeName) -> Result<Option<Stored>, Unavailable> {
        Ok(None)
    }

    async fn known_of_machine(
        &self,
        _: &Identity,
        _: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        Ok(Vec::new())
    }

    async fn caught_up(&self, name: &NodeName, version: &Version) -> Result<(), Unavailable> {
        self.0.caught_up(name, version).await
    }

    async fn read(&self, name: &NodeName) -> Result<Option<Stored>, Unavailable> {
        self.0.read(name).await
    }

    async fn create(&self, record: &Record) -> Result<Stored, WriteError> {
        self.0.create(record).await
    }

    async fn replace(&self, record: &Record, read: &Version) -> Result<Stored, WriteError> {
        self.0.replace(record, read).await
    }

    async fn delete(&self, name: &NodeName, read: &Version) -> Result<(), WriteError> {
        self.0.delete(name, read).await
    }

    async fn all(&self) -> Result<Vec<Stored>, Unavailable> {
        self.0.all().await
    }

    async fn note(&self, name: &NodeName, issued: &LastIssued) -> Result<(), Unavailable> {
        self.0.note(name, issued).await
    }
}

#[test]
fn a_claim_is_not_refused_on_the_word_of_a_cache_that_lacks_the_record() {
    let world = World::held(policy());
    world.node("n1", true, 1);
    let ledger = RecordLedger {
        records: Arc::new(Uncached(world.records.clone())),
        ..world.ledger()
    };

    let again = block_on(ledger.claim(&claim("m1", "n1", 1, 0), at(1)));

    assert_eq!(again.unwrap().uid.generation, 1);
}

#[test]
fn what_proved_nothing_is_no_other_machine_than_that_of_its_token() {
    let mut world = World::with(policy());
    world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
    world.claims(&insecure(claim("m2", "n2", 2, 0)), 0).unwrap();
    let holders = ["n1", "n2"].map(|node| world.record(node).holder);
    for machine in ["m1", "m2"] {
        world.becomes(machine, None);
    }
    let ledger = world.ledger();
    let can_be = |holder, machine| block_on(ledger.can_be(holder, machine)).unwrap();

    let [attested, insecure] = &holders;
    assert!(can_be(attested, "m1"));
    assert!(can_be(attested, "m3"));
    assert!(can_be(insecure, "m2"));
    assert!(!can_be(insecure, "m3"));
    // A member of a pool without a Machine.
    assert!(can_be(insecure, provider_id("m2").as_str()));
}
