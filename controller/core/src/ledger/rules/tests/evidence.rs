//! Tests of machines whose renewals have stronger evidence than their records.

use futures::executor::block_on;

use crate::crd::RevokedNodeCredentialsSpec;
use crate::identifiers::{CertificateUid, KeyDigest};
use crate::ledger::rules::{self, Renewed};
use crate::ledger::*;
use crate::refusal::{Deferral, Denial, Refusal};
use crate::testing::faulty_records::Fault;
use crate::testing::records::{
    LONGEST, World, at, claim, insecure, name, opened_at, policy, provider_id, renewal,
};
use crate::verifier::{Assurance, AttestedIdentity, Identity, TpmBoot};

/// A world in which `m1` holds `n1` without evidence.
fn unproved() -> World {
    let world = World::with(policy());
    world.claims(&insecure(claim("m1", "n1", 1, 0)), 0).unwrap();
    world
}

fn with_tpm(machine: &str, key: &[u8]) -> AttestedIdentity {
    AttestedIdentity::vouched(Identity {
        endorsement_key: Some(KeyDigest::of(key)),
        boot: Some(TpmBoot {
            resets: 1,
            restarts: 0,
            clock: 1,
        }),
        ..Identity::of(provider_id(machine))
    })
}

fn renews(
    world: &World,
    identity: AttestedIdentity,
    uid: CertificateUid,
    hour: u32,
) -> Result<u64, Refusal> {
    renews_at(&world.ledger(), identity, uid, hour)
}

fn renews_at(
    ledger: &RecordLedger,
    identity: AttestedIdentity,
    uid: CertificateUid,
    hour: u32,
) -> Result<u64, Refusal> {
    let renewal = Renewal {
        identity,
        uid,
        ..renewal("m1", 1, hour)
    };
    let granted = block_on(ledger.renew(&renewal, at(hour)));
    granted.map(|grant| grant.uid.generation)
}

#[track_caller]
fn denied(renewed: Result<u64, Refusal>) -> Denial {
    match renewed {
        Err(Refusal::Deny(denial)) => denial,
        other => panic!("not denied: {other:?}"),
    }
}

fn proved() -> AttestedIdentity {
    AttestedIdentity::vouched(Identity::of(provider_id("m1")))
}

fn lowest_valid(world: &World, hour: u32) -> Option<u64> {
    let revoked = world.record("n1").revoked_generations(LONGEST, at(hour));
    revoked.map(|revoked| revoked.lowest_valid)
}

#[test]
fn a_renewal_with_evidence_opens_a_generation_for_the_attested_holder() {
    let world = unproved();
    let first = world.record("n1").certificate_uid();
    assert!(!world.record("n1").holder.is_attested());

    assert_eq!(renews(&world, proved(), first, 1).unwrap(), opened_at(1));

    let record = world.record("n1");
    assert!(record.holder.is_attested());
    assert_eq!(record.uid, first.record);
    assert_eq!(record.generation, opened_at(1));
}

#[test]
fn a_previous_generation_is_valid_until_the_new_certificate_is_used() {
    for is_serving in [false, true] {
        let world = unproved();
        let first = world.record("n1").certificate_uid();
        renews(&world, proved(), first, 1).unwrap();
        let second = world.record("n1").certificate_uid();

        // The answer was lost, so the node repeats its request. The ledger does not write the record again.
        let before = world.record("n1");
        assert_eq!(renews(&world, proved(), first, 2).unwrap(), opened_at(1));
        assert_eq!(world.record("n1"), before);
        assert_eq!(lowest_valid(&world, 2), None);

        if is_serving {
            let holder = block_on(world.ledger().holder(&name("n1"), Some(second))).unwrap();
            assert!(matches!(holder.assurance, Assurance::Attested(_)));
        } else {
            assert_eq!(renews(&world, proved(), second, 3).unwrap(), opened_at(1));
        }

        assert_eq!(world.record("n1").superseded, None);
        assert_eq!(lowest_valid(&world, 3), Some(opened_at(1)));
        assert!(matches!(
            denied(renews(&world, proved(), first, 4)),
            Denial::FormerCertificate(_, uid) if uid == first
        ));
    }
}

#[test]
fn an_upgrade_to_evidence_survives_each_lost_write_or_response() {
    for first_fault in [Fault::ReadOnly, Fault::AnswerLost] {
        for second_fault in [Fault::ReadOnly, Fault::AnswerLost] {
            let world = unproved();
            let first = world.record("n1").certificate_uid();
            let over = |fault, uid, hour| {
                let ledger = world.ledger_over(world.faulty(fault));
                renews_at(&ledger, proved(), uid, hour)
            };

            assert!(matches!(
                over(first_fault, first, 1),
                Err(Refusal::Retry(Deferral::LedgerUnavailable(_)))
            ));
            assert_eq!(lowest_valid(&world, 1), None);

            // The node still has only its first certificate.
            let opened = if first_fault == Fault::AnswerLost {
                1
            } else {
                2
            };
            let granted = renews(&world, proved(), first, 2).unwrap();
            assert_eq!(granted, opened_at(opened));
            assert_eq!(lowest_valid(&world, 2), None);
            assert_eq!(world.record("n1").superseded, Some(1));

            // The node has used the next certificate, regardless of whether the write succeeded.
            let second = world.record("n1").certificate_uid();
            assert_eq!(over(second_fault, second, 3).unwrap(), granted);
            let ended = second_fault == Fault::AnswerLost;
            assert_eq!(lowest_valid(&world, 3), ended.then_some(granted));
            assert_eq!(renews(&world, proved(), second, 4).unwrap(), granted);
            assert_eq!(lowest_valid(&world, 4), Some(granted));
        }
    }
}

/// The claim in a renewal with this certificate, if its evidence is stronger than the evidence in the record.
fn stronger(identity: AttestedIdentity, uid: CertificateUid) -> Claim {
    Claim {
        claimant: Claimant::Renewal(uid),
        assurance: Assurance::Attested(identity),
        ..claim("m1", "n1", 3, 2)
    }
}

#[test]
fn only_the_current_generation_can_add_evidence_to_a_record() {
    let world = unproved();
    let first = world.record("n1").certificate_uid();
    renews(&world, proved(), first, 1).unwrap();
    let record = world.record("n1");
    let strengthens = |identity, uid| {
        let renewal = Renewal {
            identity,
            uid,
            ..renewal("m1", 1, 2)
        };
        let renewed = rules::renewed(
            Some(&record),
            &RevokedNodeCredentialsSpec::default(),
            &renewal,
        );
        matches!(renewed.unwrap(), Renewed::Strengthen)
    };

    let present = record.certificate_uid();
    assert!(strengthens(with_tpm("m1", b"a"), present));
    assert!(!strengthens(proved(), present));
    assert!(!strengthens(with_tpm("m1", b"a"), first));
}

#[test]
fn a_superseded_generation_does_not_open_another_generation() {
    let world = unproved();
    let first = world.record("n1").certificate_uid();
    renews(&world, proved(), first, 1).unwrap();
    let before = world.record("n1");

    let granted = world.claims(&stronger(with_tpm("m1", b"a"), first), 2);

    let granted = granted.unwrap();
    assert_eq!(granted.uid, before.certificate_uid());
    assert_eq!(granted.reason, GrantReason::Renewed);
    assert_eq!(world.record("n1"), before);
}

#[test]
fn a_previous_certificate_cannot_add_evidence_to_a_record() {
    let world = unproved();
    let former = world.record("n1").certificate_uid();
    world.node("n1", false, 1);
    world
        .claims(&insecure(claim("m1", "n1", 2, 11)), 11)
        .unwrap();
    let before = world.record("n1");
    assert_ne!(before.certificate_uid(), former);

    assert_eq!(
        world.denied(&stronger(proved(), former), 12),
        Denial::FormerCertificate(name("n1"), former)
    );
    assert_eq!(world.record("n1"), before);
}

#[test]
fn a_superseded_certificate_gets_no_serving_certificate() {
    let world = unproved();
    let first = world.record("n1").certificate_uid();
    renews(&world, proved(), first, 1).unwrap();

    let holder = block_on(world.ledger().holder(&name("n1"), Some(first)));

    assert!(matches!(
        holder,
        Err(Refusal::Deny(Denial::FormerCertificate(_, uid))) if uid == first
    ));
    assert_eq!(world.record("n1").superseded, Some(1));
}

#[test]
fn a_generation_before_the_superseded_one_stays_revoked() {
    let world = unproved();
    world.revoke("n1", 1);
    world.reset("n1");
    world.claims(&insecure(claim("m1", "n1", 2, 1)), 1).unwrap();
    let second = world.record("n1").certificate_uid();

    renews(&world, proved(), second, 2).unwrap();

    assert_eq!(lowest_valid(&world, 2), Some(second.generation));
}

#[test]
fn a_renewal_with_a_tpm_binds_the_record_to_that_tpm() {
    let world = World::held(policy());
    let first = world.record("n1").certificate_uid();
    assert_eq!(world.record("n1").holder.endorsement_key, None);

    renews(&world, with_tpm("m1", b"a"), first, 1).unwrap();

    let record = world.record("n1");
    assert_eq!(record.holder.endorsement_key, Some(KeyDigest::of(b"a")));
    for uid in [first, record.certificate_uid()] {
        for identity in [with_tpm("m1", b"b"), proved()] {
            assert!(matches!(
                denied(renews(&world, identity, uid, 2)),
                Denial::AnotherInstance { .. }
            ));
        }
    }
    renews(&world, with_tpm("m1", b"a"), record.certificate_uid(), 2).unwrap();
}

#[test]
fn a_renewal_with_the_tpm_of_another_machine_is_denied() {
    let world = unproved();
    let other = Claim {
        assurance: Assurance::Attested(with_tpm("m2", b"a")),
        ..claim("m2", "n2", 2, 0)
    };
    world.claims(&other, 0).unwrap();
    let first = world.record("n1").certificate_uid();

    assert!(matches!(
        denied(renews(&world, with_tpm("m1", b"a"), first, 1)),
        Denial::TpmOfAnotherMachine { .. }
    ));
    assert_eq!(world.record("n1").certificate_uid(), first);
    renews(&world, with_tpm("m1", b"b"), first, 1).unwrap();
}

#[test]
fn a_first_attestation_of_a_suspect_instance_is_denied() {
    let world = unproved();
    let first = world.record("n1").certificate_uid();
    let doubt = || Denial::RecordMissing(name("n1"));

    let renewed = renews(&world, proved().unless_known(doubt()), first, 1);

    assert!(matches!(denied(renewed), Denial::RecordMissing(_)));
    assert_eq!(world.record("n1").certificate_uid(), first);
}

#[test]
fn a_revoked_record_cannot_be_upgraded_with_evidence() {
    let world = unproved();
    let first = world.record("n1").certificate_uid();
    world.revoke("n1", 1);

    assert!(matches!(
        denied(renews(&world, proved(), first, 1)),
        Denial::IdentityRevoked(_, 1)
    ));
}
