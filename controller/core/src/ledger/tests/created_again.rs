//! Tests of a Cluster that was recreated with the same name, so its records and its list of revocations are new.

use std::fmt::Debug;

use futures::executor::block_on;

use crate::ledger::*;
use crate::refusal::{Denial, Refusal};
use crate::testing::records::*;

/// The certificate for `n1` from the previous Cluster, and the new Cluster, with this floor.
fn created_again(floor: u64) -> (Renewal, World) {
    let former = World::held(policy());
    let certificate = renewal("m1", 1, 2);
    assert_eq!(former.record("n1").uid, certificate.uid.record);
    former.renews("m1", 1, 2).unwrap();
    let world = World::new();
    world.revocations.decide(RevocationDecisions {
        floor,
        ..RevocationDecisions::default()
    });
    (certificate, world)
}

fn denial<T: Debug>(result: Result<T, Refusal>) -> Denial {
    match result {
        Err(Refusal::Deny(denial)) => denial,
        other => panic!("not denied: {other:?}"),
    }
}

#[test]
fn a_certificate_from_a_deleted_cluster_cannot_renew_or_serve() {
    for (floor, writes) in [(0, true), (opened_at(1), false)] {
        let (certificate, world) = created_again(floor);
        let ledger = world.ledger();

        let renewed = block_on(ledger.renew(&certificate, at(2)));
        let served = block_on(ledger.holder(&name("n1"), Some(certificate.uid)));

        let missing = Denial::RecordMissing(name("n1"));
        assert_eq!(denial(renewed), missing, "{floor}");
        assert_eq!(denial(served), missing, "{floor}");
        let list = world.revocations.known().unwrap();
        assert_eq!(!list.refuses(certificate.uid), writes, "{floor}");
    }
}

#[test]
fn a_machine_from_a_deleted_cluster_gets_a_new_certificate_uid() {
    for (floor, expected) in [(0, 1), (opened_at(1), opened_at(2))] {
        let (certificate, world) = created_again(floor);
        // This claim ensures that the UID of the next record differs from the first UID of the previous Cluster.
        world.granted(&claim("m2", "n2", 2, 2), 2);

        let granted = world.claims(&claim("m1", "n1", 1, 2), 2).unwrap();

        assert_eq!(granted.uid.generation, expected, "{floor}");
        assert_ne!(granted.uid, certificate.uid);
        let denial = world.renewal_denied("m1", 1, 2);
        assert!(
            matches!(denial, Denial::FormerCertificate { .. }),
            "{denial:?}"
        );
    }
}
