//! Tests of machines that got two names from two replicas at the same time.

use futures::executor::block_on;

use crate::identifiers::RecordUid;
use crate::ledger::*;
use crate::testing::records::{World, at, claim, policy};

/// A world in which `m1` has held `n1` since hour 0 and `n2` since this hour. Both Nodes are up.
fn both_held(second: u32) -> World {
    let world = World::held(policy());
    let claim = claim("m1", "n2", 2, second);
    let record = Record::first(&claim, RecordUid::new([9; 16]), None, at(second));
    block_on(world.records.create(&record)).unwrap();
    for node in ["n1", "n2"] {
        world.node_of(node, "m1", true, 2);
    }
    world
}

#[test]
fn the_later_of_two_records_of_a_machine_is_retired() {
    let world = both_held(1);

    assert_eq!(world.waits(&claim("m1", "n1", 1, 2), 2), "IdentityLive");
    assert!(["n1", "n2"].iter().all(|node| world.record(node).is_live()));
    assert_eq!(world.waits(&claim("m1", "n2", 2, 2), 2), "IdentityLive");
    let tombstone = world.record("n2").tombstone.unwrap();
    assert_eq!(tombstone.reason, TombstoneReason::Renamed);
    assert!(world.record("n1").is_live());
}

#[test]
fn the_name_decides_between_two_records_of_the_same_age() {
    let world = both_held(0);

    assert_eq!(world.waits(&claim("m1", "n1", 1, 2), 2), "IdentityLive");
    assert!(["n1", "n2"].iter().all(|node| world.record(node).is_live()));
    assert_eq!(world.waits(&claim("m1", "n2", 2, 2), 2), "IdentityLive");
    assert!(!world.record("n2").is_live());
    assert_eq!(
        world.claims(&claim("m1", "n1", 1, 2), 2).unwrap().uid,
        world.record("n1").certificate_uid()
    );
}
