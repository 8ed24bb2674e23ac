//! Tests of certificates whose records were lost, or come from a backup.

use futures::executor::block_on;

use crate::crd::RevokedNodeCredentialsSpec;
use crate::identifiers::{CertificateUid, KeyDigest, RecordUid};
use crate::ledger::*;
use crate::refusal::{Deferral, Denial, Refusal};
use crate::testing::faulty_records::Fault;
use crate::testing::records::*;
use crate::verifier::{AttestedIdentity, Identity};

fn recovering() -> LedgerPolicy {
    LedgerPolicy {
        adoption: Adoption::Recover,
        ..policy()
    }
}

fn lose(world: &World) {
    let stored = block_on(world.records.read(&name("n1"))).unwrap().unwrap();
    block_on(world.records.delete(&name("n1"), &stored.version)).unwrap();
}

/// A world in which `m1` held `n1` with generation 1. The record was lost, and the Node is up.
fn lost(policy: LedgerPolicy) -> World {
    let world = World::held(policy);
    world.node("n1", true, 1);
    lose(&world);
    world
}

/// The world from [`lost`], but the record was lost after `m1` got generation 2 at hour 1.
fn lost_after_two_generations() -> World {
    let world = World::held(recovering());
    assert_eq!(world.granted(&claim("m1", "n1", 2, 1), 1), opened_at(1));
    lose(&world);
    world
}

/// A world with the record `n1` in generation 1, from a backup that is older than generation 2.
fn restored(policy: LedgerPolicy) -> World {
    let world = World::held(policy);
    let backup = world.record("n1");
    assert_eq!(world.granted(&claim("m1", "n1", 2, 1), 1), opened_at(1));
    lose(&world);
    block_on(world.records.create(&backup)).unwrap();
    world
}

fn of_n1(generation: u64) -> CertificateUid {
    renewal("m1", generation, 0).uid
}

fn former(generation: u64) -> Denial {
    Denial::FormerCertificate(name("n1"), of_n1(generation))
}

/// Publishes the revocations in the record.
fn publish(world: &World, hour: u32) {
    let record = world.record("n1");
    let list = RevokedNodeCredentialsSpec::of_records([&record], LONGEST, at(hour));
    world.revocations.read(list);
}

#[track_caller]
fn waits(world: &World, hour: u32) -> &'static str {
    match world.renews("m1", 1, hour) {
        Err(Refusal::Retry(deferral)) => deferral.reason(),
        other => panic!("not put off: {other:?}"),
    }
}

#[test]
fn a_lost_record_is_recovered_with_its_certificate_and_evidence() {
    let world = lost(recovering());

    let grant = world.renews("m1", 1, 2).unwrap();

    assert_eq!(grant.uid, of_n1(opened_at(2)));
    assert_eq!(grant.reason, GrantReason::Recovered(1));
    assert_eq!(grant.reason.reason(), "IdentityRecovered");
    let record = world.record("n1");
    assert_eq!(record.certificate_uid(), grant.uid);
    assert_eq!(record.holder.provider_id, provider_id("m1"));
    assert!(record.holder.is_attested());
}

#[test]
fn without_recover_a_certificate_without_a_record_is_denied() {
    for adoption in [
        Adoption::Refuse,
        Adoption::Allow,
        Adoption::AllowWithoutEvidence,
    ] {
        let world = lost(LedgerPolicy {
            adoption,
            ..policy()
        });

        let missing = Denial::RecordMissing(name("n1"));
        assert_eq!(world.renewal_denied("m1", 1, 2), missing, "{adoption:?}");
    }
}

#[test]
fn recover_does_not_adopt_a_certificate_without_a_uid() {
    let world = lost(recovering());
    for claim in [
        by_node(claim("m1", "n1", 2, 1)),
        insecure(by_node(claim("m1", "n1", 2, 1))),
    ] {
        assert_eq!(world.denied(&claim, 1), Denial::RequesterUidMissing);
    }
}

#[test]
fn a_recovering_certificate_is_valid_until_the_next_one_is_used() {
    let world = lost(recovering());
    let granted = world.renews("m1", 1, 2).unwrap().uid;
    let lowest_valid = |hour| {
        let revoked = world.record("n1").revoked_generations(LONGEST, at(hour));
        revoked.map(|revoked| revoked.lowest_valid)
    };

    // The answer was lost, so the node repeats its request.
    assert_eq!(world.renews("m1", 1, 3).unwrap().uid, granted);
    assert_eq!(lowest_valid(3), None);

    assert_eq!(
        world.renews("m1", granted.generation, 4).unwrap().uid,
        granted
    );
    assert_eq!(lowest_valid(4), Some(granted.generation));
    assert_eq!(world.renewal_denied("m1", 1, 5), former(1));
}

#[test]
fn a_recovering_certificate_with_a_longer_lifetime_stays_refused_until_it_expires() {
    let world = lost(recovering());
    let granted = world.renews("m1", 1, 2).unwrap().uid;
    world.renews("m1", granted.generation, 3).unwrap();

    let (day, record) = (24, world.record("n1"));
    let is_listed = |hour| record.revoked_generations(LONGEST, at(hour)).is_some();
    assert!(is_listed(2 + 30 * day));
    assert!(!is_listed(3 + 30 * day));
}

#[test]
fn a_revoked_machine_recovers_nothing_after_its_record_is_lost() {
    let world = World::held(recovering());
    world.revoke("n1", 1);
    publish(&world, 1);
    lose(&world);

    let revoked = Denial::IdentityRevoked(name("n1"), 1);
    assert_eq!(world.renewal_denied("m1", 1, 2), revoked);

    // Even if an operator releases the machine, the certificate remains revoked.
    let mut released = RevocationDecisions::default();
    released.release(provider_id("m1"), at(2));
    world.revocations.decide(released);
    assert_eq!(world.renewal_denied("m1", 1, 3), former(1));
}

#[test]
fn a_repeated_recovery_still_waits_for_another_name_of_the_machine() {
    let world = lost(recovering());
    world.renews("m1", 1, 2).unwrap();
    // Another replica recovers `n2` at the same time.
    let other = Record {
        node_name: name("n2"),
        uid: RecordUid::new([8; 16]),
        ..world.record("n1")
    };
    block_on(world.records.create(&other)).unwrap();
    world.node("n2", true, 3);

    assert_eq!(waits(&world, 3), "IdentityLive");
    world.node("n2", false, 3);
    world.renews("m1", 1, 3).unwrap();
    assert!(!world.record("n2").is_live());
}

#[test]
fn a_retired_or_replaced_generation_in_the_list_recovers_nothing() {
    let retired = World::held(recovering());
    retired.edit("n1", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });
    let replaced = World::held(recovering());
    replaced.granted(&claim("m1", "n1", 2, 1), 1);
    for world in [&retired, &replaced] {
        publish(world, 1);
        lose(world);

        assert_eq!(world.renewal_denied("m1", 1, 2), former(1));
    }
    let present = replaced.renews("m1", opened_at(1), 2).unwrap();
    assert_eq!(present.uid, of_n1(opened_at(2)));
}

#[test]
fn a_certificate_below_the_floor_recovers_nothing() {
    let present = opened_at(1);
    let below = |floor| {
        let world = lost_after_two_generations();
        world.revocations.decide(RevocationDecisions {
            floor,
            ..RevocationDecisions::default()
        });
        world
    };

    let denial = below(present + 1).renewal_denied("m1", present, 3);
    assert_eq!(denial, former(present));
    below(present).renews("m1", present, 3).unwrap();
}

#[test]
fn the_later_of_two_certificates_of_one_machine_wins() {
    let later = opened_at(1);
    let world = lost_after_two_generations();
    world.renews("m1", later, 2).unwrap();
    assert_eq!(world.renewal_denied("m1", 1, 3), former(1));

    let world = lost_after_two_generations();
    let earlier = world.renews("m1", 1, 2).unwrap().uid.generation;
    let won = world.renews("m1", later, 3).unwrap().uid;
    assert_eq!(won, of_n1(opened_at(3)));
    for ended in [1, earlier, later] {
        assert_eq!(world.renewal_denied("m1", ended, 4), former(ended));
    }
    world.renews("m1", won.generation, 4).unwrap();
}

#[test]
fn the_later_of_two_certificates_of_two_machines_wins() {
    let later = opened_at(1);
    let world = lost_after_two_generations();
    let earlier = world.renews("m1", 1, 2).unwrap().uid.generation;

    let won = world.renews("m2", later, 3).unwrap();

    assert_eq!(world.record("n1").holder.provider_id, provider_id("m2"));
    assert_eq!(world.record("n1").certificate_uid(), won.uid);
    let taken = Denial::NameTaken(name("n1"), provider_id("m2"));
    for ended in [1, earlier] {
        assert_eq!(world.renewal_denied("m1", ended, 4), taken);
    }

    let world = lost_after_two_generations();
    world.renews("m2", later, 2).unwrap();
    assert_eq!(world.renewal_denied("m1", 1, 3), taken);
}

#[test]
fn a_record_from_a_backup_is_recovered_with_a_later_certificate() {
    let later = opened_at(1);
    let world = restored(recovering());

    let grant = world.renews("m1", later, 2).unwrap();

    assert_eq!(grant.uid, of_n1(opened_at(2)));
    assert_eq!(grant.reason, GrantReason::Recovered(later));
    assert_eq!(world.record("n1").superseded, Some(later));
    assert_eq!(world.renewal_denied("m1", 1, 3), former(1));

    let refusing = restored(policy());
    assert_eq!(refusing.renewal_denied("m1", later, 2), former(later));
}

#[test]
fn a_revoked_record_from_a_backup_is_not_recovered() {
    let world = restored(recovering());
    world.revoke("n1", 1);

    let revoked = Denial::IdentityRevoked(name("n1"), 1);
    assert_eq!(world.renewal_denied("m1", opened_at(1), 2), revoked);
}

#[test]
fn the_live_holder_in_a_backup_keeps_its_name() {
    let mut world = restored(recovering());
    let taken = Denial::NameTaken(name("n1"), provider_id("m1"));
    assert_eq!(world.renewal_denied("m2", opened_at(1), 2), taken);

    world.becomes("m1", None);
    let granted = world.renews("m2", opened_at(1), 2).unwrap().uid;
    assert_eq!(world.record("n1").holder.provider_id, provider_id("m2"));
    // The answer was lost, so the node sends another request.
    assert_eq!(world.renews("m2", opened_at(1), 3).unwrap().uid, granted);
    let taken = Denial::NameTaken(name("n1"), provider_id("m2"));
    assert_eq!(world.renewal_denied("m1", 1, 3), taken);
}

#[test]
fn a_uid_in_the_record_of_another_name_recovers_nothing() {
    let world = lost(recovering());
    world.claims(&claim("m2", "n2", 2, 1), 1).unwrap();
    let own = world.record("n2").uid;
    world.edit("n2", |record| record.uid = of_n1(1).record);
    assert_eq!(world.renewal_denied("m1", 1, 2), former(1));

    world.edit("n2", |record| record.uid = own);
    world.renews("m1", 1, 2).unwrap();
}

#[test]
fn a_uid_in_the_record_of_another_name_does_not_recover_a_record_from_a_backup() {
    let world = restored(recovering());
    world.claims(&claim("m2", "n2", 3, 1), 1).unwrap();
    world.edit("n2", |record| record.uid = of_n1(1).record);

    let later = opened_at(1);
    assert_eq!(world.renewal_denied("m1", later, 2), former(later));
}

#[test]
fn a_generation_in_the_far_future_recovers_nothing() {
    let world = lost(recovering());
    for generation in [u64::MAX, opened_at(23)] {
        let denial = world.renewal_denied("m1", generation, 2);
        assert_eq!(denial, former(generation));
    }
    let granted = world.renews("m1", opened_at(22), 2).unwrap();
    assert_eq!(granted.uid.generation, opened_at(22) + 1);
}

#[test]
fn a_recovery_waits_for_the_node_of_another_machine() {
    let world = lost(recovering());
    world.node_of("n1", "m2", true, 2);
    assert_eq!(waits(&world, 2), "NodeAlive");
    world.node_of("n1", "m2", false, 2);
    assert_eq!(waits(&world, 2), "NodeOfAnotherMachine");

    world.node_of("n1", "m1", true, 2);
    world.renews("m1", 1, 2).unwrap();
}

#[test]
fn a_recovery_with_the_key_of_another_machine_is_denied() {
    let world = lost(recovering());
    let copied = Claim {
        key: renewal("m1", 1, 2).key,
        ..claim("m2", "n2", 2, 1)
    };
    world.claims(&copied, 1).unwrap();

    let denial = world.renewal_denied("m1", 1, 2);

    assert_eq!(
        denial,
        Denial::KeyOfAnotherMachine(name("n2"), provider_id("m2"))
    );
}

#[test]
fn a_suspect_instance_recovers_nothing() {
    let world = lost(recovering());
    let identity = AttestedIdentity::vouched(Identity::of(provider_id("m1")));
    let suspect = Renewal {
        identity: identity.unless_known(Denial::RequesterUidMissing),
        ..renewal("m1", 1, 2)
    };

    let renewed = block_on(world.ledger().renew(&suspect, at(2)));

    assert!(matches!(
        renewed,
        Err(Refusal::Deny(Denial::RequesterUidMissing))
    ));
}

#[test]
fn without_evidence_a_lost_record_is_replaced_when_its_node_is_down() {
    let world = lost(policy());
    let claim = insecure(claim("m1", "n1", 2, 1));
    assert_eq!(world.waits(&claim, 1), "NodeAlive");

    world.node("n1", false, 1);
    let granted = world.claims(&claim, 1).unwrap();
    assert_eq!(granted.reason, GrantReason::First);
    assert_ne!(granted.uid.record, of_n1(1).record);
}

#[test]
fn an_unread_revocation_list_delays_a_recovery() {
    let world = lost(recovering());
    world.revocations.forget();
    assert_eq!(waits(&world, 2), "LedgerUnavailable");

    world
        .revocations
        .read(RevokedNodeCredentialsSpec::default());
    world.renews("m1", 1, 2).unwrap();
}

#[test]
fn a_recovery_survives_each_lost_write_or_response() {
    let over = |world: &World, fault, renewal: &Renewal| {
        let ledger = world.ledger_over(world.faulty(fault));
        block_on(ledger.renew(renewal, at(3)))
    };
    let unavailable = |renewed: &Result<Grant, Refusal>| {
        matches!(renewed, Err(Refusal::Retry(Deferral::LedgerUnavailable(_))))
    };
    let missing = lost(recovering());
    let renewal_of_1 = renewal("m1", 1, 3);
    assert!(unavailable(&over(&missing, Fault::ReadOnly, &renewal_of_1)));
    missing.renews("m1", 1, 3).unwrap();

    // The earlier certificate was used first, so its recovery also invalidates the later certificate.
    for fault in [Fault::ReadOnly, Fault::AnswerLost] {
        let world = lost_after_two_generations();
        world.renews("m1", 1, 2).unwrap();
        let later = renewal("m1", opened_at(1), 3);
        assert!(unavailable(&over(&world, fault, &later)));

        let granted = world.renews("m1", opened_at(1), 3).unwrap().uid;
        assert_eq!(granted, of_n1(opened_at(3)));
        let other_key = Renewal {
            key: KeyDigest::of(b"other"),
            ..later.clone()
        };
        let other_request = Renewal {
            request: RequestRef {
                name: "other".to_owned(),
                uid: "other".to_owned(),
            },
            ..later
        };
        for other in [other_key, other_request] {
            let denied = block_on(world.ledger().renew(&other, at(3)));
            assert!(matches!(
                denied,
                Err(Refusal::Deny(Denial::FormerCertificate(..)))
            ));
        }
    }
}
