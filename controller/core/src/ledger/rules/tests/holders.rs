//! Tests of the holder of a name. The ledger returns the holder to a requester that has a certificate for the record.

use futures::executor::block_on;

use crate::ledger::*;
use crate::refusal::{Denial, Refusal};
use crate::testing::records::{LONGEST, World, at, name, policy};

#[test]
fn a_tombstone_has_no_holder() {
    let world = World::held(policy());
    let uid = world.record("n1").certificate_uid();
    let holder = |presented| block_on(world.ledger().holder(&name("n1"), presented));
    assert_eq!(holder(None).unwrap().uid, uid);

    world.edit("n1", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });

    for (presented, expected) in [
        (None, Denial::RecordMissing(name("n1"))),
        (Some(uid), Denial::FormerCertificate(name("n1"), uid)),
    ] {
        let Err(Refusal::Deny(denial)) = holder(presented) else {
            panic!("not denied: {presented:?}");
        };
        assert_eq!(denial, expected);
    }
}
