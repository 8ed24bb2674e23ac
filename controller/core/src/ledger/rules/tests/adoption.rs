//! Tests of existing nodes that have only their current certificate.

use crate::ledger::*;
use crate::refusal::Denial;
use crate::testing::records::*;

fn adopting(adoption: Adoption) -> World {
    let world = World::with(LedgerPolicy {
        adoption,
        ..policy()
    });
    world.node("n1", true, 0);
    world
}

/// The claim of Node `n1` with this key, without evidence.
fn bare(machine: &str, key: u8, hour: u32) -> Claim {
    insecure(by_node(claim(machine, "n1", key, hour)))
}

#[test]
fn a_node_without_evidence_is_adopted_only_with_the_matching_policy() {
    let without = adopting(Adoption::AllowWithoutEvidence);
    assert_eq!(without.granted(&bare("m1", 1, 0), 0), 1);
    assert!(!without.record("n1").holder.is_attested());

    for (adoption, claim) in [
        (Adoption::Refuse, bare("m1", 1, 0)),
        (Adoption::Allow, bare("m1", 1, 0)),
        (
            Adoption::AllowWithoutEvidence,
            by_node(claim("m1", "n1", 1, 0)),
        ),
    ] {
        let denial = adopting(adoption).denied(&claim, 0);
        assert_eq!(denial, Denial::RequesterUidMissing, "{adoption:?}");
    }
}

#[test]
fn without_evidence_a_missing_node_is_not_adopted() {
    let world = World::with(LedgerPolicy {
        adoption: Adoption::AllowWithoutEvidence,
        ..policy()
    });
    let claim = bare("m1", 1, 0);
    assert_eq!(world.denied(&claim, 0), Denial::RequesterUidMissing);

    world.node("n1", false, 0);
    assert_eq!(world.granted(&claim, 0), 1);
}

#[test]
fn adoption_without_evidence_opens_only_one_generation() {
    let mut world = adopting(Adoption::AllowWithoutEvidence);
    world.claims(&bare("m1", 1, 0), 0).unwrap();

    // A crash before the answer has no effect.
    assert_eq!(world.granted(&bare("m1", 1, 1), 1), 1);
    let refused = Denial::RequesterUidMissing;
    assert_eq!(world.denied(&bare("m1", 2, 1), 1), refused);
    // After the record's certificates expire, after a reset, or while the Machine is missing, only a token can claim
    // the name.
    assert_eq!(world.denied(&bare("m1", 2, 11), 11), refused);
    assert_eq!(world.denied(&bare("m1", 1, 11), 11), refused);
    world.reset("n1");
    assert_eq!(world.denied(&bare("m1", 2, 1), 1), refused);
    world.edit("n1", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });
    assert_eq!(world.denied(&bare("m1", 2, 2), 2), refused);
    world.becomes("m1", None);
    assert_eq!(world.denied(&bare("m2", 2, 2), 2), refused);
}

#[test]
fn adoption_without_evidence_cannot_rename_a_recorded_machine() {
    let world = adopting(Adoption::AllowWithoutEvidence);
    world.claims(&bare("m1", 1, 0), 0).unwrap();
    world.node("n2", true, 0);
    let other = |hour| insecure(by_node(claim("m1", "n2", 2, hour)));
    let refused = Denial::RequesterUidMissing;

    // The certificates of the record have expired.
    assert_eq!(world.denied(&other(11), 11), refused);
    world.reset("n1");
    assert_eq!(world.denied(&other(1), 1), refused);
    assert!(world.record("n1").is_live());
}

#[test]
fn adoption_without_evidence_does_not_undo_a_revocation() {
    let world = adopting(Adoption::AllowWithoutEvidence);
    world.claims(&bare("m1", 1, 0), 0).unwrap();
    world.revoke("n1", 1);
    let revoked = Denial::IdentityRevoked(name("n1"), 1);

    assert_eq!(world.denied(&bare("m1", 1, 1), 1), revoked);
    assert_eq!(world.denied(&bare("m1", 2, 1), 1), revoked);
}

#[test]
fn adoption_without_evidence_cannot_take_a_name_from_another_machine() {
    let world = adopting(Adoption::AllowWithoutEvidence);
    world.claims(&bare("m1", 1, 0), 0).unwrap();

    let denial = world.denied(&bare("m2", 2, 1), 1);
    assert!(matches!(denial, Denial::NameTaken { .. }), "{denial:?}");
}

#[test]
fn an_adopted_node_rejoins_with_its_token_after_two_weeks_off() {
    const TWO_WEEKS: u32 = 14 * 24;
    let off = |adoption, is_attested| {
        let world = adopting(adoption);
        let with = |claim| if is_attested { claim } else { insecure(claim) };
        world.granted(&with(by_node(claim("m1", "n1", 1, 0))), 0);
        world.node("n1", false, TWO_WEEKS);
        let token = with(claim("m1", "n1", 2, TWO_WEEKS));
        (world, token)
    };
    for (adoption, is_attested) in [
        (Adoption::Allow, true),
        (Adoption::AllowWithoutEvidence, false),
    ] {
        let (world, token) = off(adoption, is_attested);
        assert_eq!(world.granted(&token, TWO_WEEKS), opened_at(TWO_WEEKS));

        // kubeadm's certificate is valid for a year. Without evidence, this certificate can open only one generation.
        let (world, token) = off(adoption, is_attested);
        let certificate = by_node(token);
        if is_attested {
            assert_eq!(world.granted(&certificate, TWO_WEEKS), opened_at(TWO_WEEKS));
        } else {
            let denial = world.denied(&certificate, TWO_WEEKS);
            assert_eq!(denial, Denial::RequesterUidMissing);
        }
    }
}
