//! Tests of facts that prevent only the first record of an identity.

use crate::identifiers::KeyDigest;
use crate::ledger::*;
use crate::refusal::{Denial, EvidenceReason};
use crate::testing::records::*;
use crate::verifier::{Assurance, AttestedIdentity, Identity};

/// A provider's reason for a denial.
#[derive(Debug, thiserror::Error)]
#[error("the root volume was moved")]
struct RootVolumeMoved;

impl EvidenceReason for RootVolumeMoved {
    fn reason(&self) -> &'static str {
        "RootVolumeMoved"
    }

    fn message(&self) -> &'static str {
        "the root volume was moved here"
    }

    fn cure(&self) -> &'static str {
        "Replace the instance."
    }
}

fn moved() -> Denial {
    RootVolumeMoved.into()
}

/// Returns the claim with a reason to refuse a first record.
fn suspect(claim: Claim) -> Claim {
    let identity = claim.assurance.identity().clone();
    Claim {
        assurance: Assurance::Attested(AttestedIdentity::vouched(identity).unless_known(moved())),
        ..claim
    }
}

#[test]
fn a_first_claim_of_a_suspect_instance_is_denied() {
    let world = World::new();

    assert_eq!(world.denied(&suspect(claim("m1", "n1", 1, 0)), 0), moved());

    // The name is still available.
    assert_eq!(world.granted(&claim("m1", "n1", 1, 0), 0), 1);
}

#[test]
fn a_repeated_claim_of_a_suspect_instance_is_accepted() {
    let world = World::held(policy());
    assert_eq!(world.granted(&suspect(claim("m1", "n1", 1, 1)), 1), 1);

    world.node("n1", true, 1);
    assert_eq!(
        world.waits(&suspect(claim("m1", "n1", 2, 1)), 1),
        "IdentityLive"
    );
    world.node("n1", false, 1);
    assert_eq!(
        world.granted(&suspect(claim("m1", "n1", 2, 1)), 1),
        opened_at(1)
    );
}

#[test]
fn a_renewal_of_a_suspect_instance_is_accepted() {
    let world = World::held(policy());
    let identity = Identity::of(provider_id("m1"));
    let renewal = Renewal {
        identity: AttestedIdentity::vouched(identity).unless_known(moved()),
        uid: world.record("n1").certificate_uid(),
        asked: at(1),
        not_after: at(11),
        ..renewal("m1", 1, 0)
    };

    let ledger = world.ledger();

    futures::executor::block_on(ledger.renew(&renewal, renewal.asked)).unwrap();
}

#[test]
fn a_suspect_instance_is_accepted_after_its_return_or_reset() {
    let world = World::held(policy());
    world.edit("n1", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });
    assert_eq!(
        world.granted(&suspect(claim("m1", "n1", 2, 2)), 2),
        opened_at(2)
    );

    world.node("n1", true, 3);
    world.reset("n1");
    assert_eq!(
        world.granted(&suspect(claim("m1", "n1", 3, 3)), 3),
        opened_at(3)
    );
}

#[test]
fn a_renamed_machine_is_accepted_after_a_crash_between_writes() {
    let world = World::held(policy());
    assert_eq!(world.granted(&suspect(claim("m1", "n2", 2, 1)), 1), 1);

    let crashed = World::held(policy());
    crashed.edit("n1", |record| {
        *record = record.retired(TombstoneReason::Renamed, LONGEST, at(1));
    });
    assert_eq!(crashed.granted(&suspect(claim("m1", "n2", 2, 1)), 1), 1);
}

#[test]
fn a_suspect_instance_cannot_take_over_a_name() {
    let mut world = World::held(policy());
    world.becomes("m1", None);

    assert_eq!(world.denied(&suspect(claim("m2", "n1", 2, 1)), 1), moved());
    assert_eq!(world.granted(&claim("m2", "n1", 2, 1), 1), opened_at(1));
}

#[test]
fn an_adoption_of_a_suspect_instance_is_denied() {
    let world = World::with(LedgerPolicy {
        adoption: Adoption::Allow,
        ..policy()
    });
    let claim = by_node(claim("m1", "n1", 1, 0));

    assert_eq!(world.denied(&suspect(claim.clone()), 0), moved());
    assert_eq!(world.granted(&claim, 0), 1);
}

#[test]
fn an_unattested_record_does_not_clear_a_suspect_instance() {
    let world = World::new();
    world.claims(&insecure(claim("m1", "n1", 1, 0)), 0).unwrap();

    assert_eq!(world.denied(&suspect(claim("m1", "n1", 1, 1)), 1), moved());
}

#[test]
fn a_record_with_another_endorsement_key_clears_no_suspect_instance() {
    let with_key = |key: &[u8], claim: Claim| {
        let identity = Identity {
            endorsement_key: Some(KeyDigest::of(key)),
            ..Identity::of(provider_id("m1"))
        };
        Claim {
            assurance: Assurance::Attested(AttestedIdentity::vouched(identity)),
            ..claim
        }
    };
    let world = World::new();
    let first = with_key(b"ek", claim("m1", "n1", 1, 0));
    world.claims(&first, 0).unwrap();
    world.reset("n1");

    let other = with_key(b"other", claim("m1", "n1", 2, 1));
    assert_eq!(world.denied(&suspect(other), 1), moved());
}
