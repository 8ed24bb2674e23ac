//! Tests of machines that attest with a TPM: the identity of the TPM, and its boot counters.

use std::time::{Duration, SystemTime};

use futures::executor::block_on;

use crate::identifiers::KeyDigest;
use crate::inventory::{Machine, MachineState};
use crate::ledger::*;
use crate::refusal::{Denial, Failure, Refusal};
use crate::testing::records::{World, at, claim, name, opened_at, provider_id, renewal};
use crate::verifier::{Assurance, AttestedIdentity, Identity, TpmBoot};

fn boot(resets: u32, restarts: u32, clock: u64) -> TpmBoot {
    TpmBoot {
        resets,
        restarts,
        clock,
    }
}

fn identity(machine: &str, key: &[u8], boot: TpmBoot) -> AttestedIdentity {
    AttestedIdentity::vouched(Identity {
        endorsement_key: Some(KeyDigest::of(key)),
        boot: Some(boot),
        ..Identity::of(provider_id(machine))
    })
}

fn by_tpm(claim: Claim, machine: &str, key: &[u8], boot: TpmBoot) -> Claim {
    Claim {
        assurance: Assurance::Attested(identity(machine, key, boot)),
        ..claim
    }
}

fn renewed(world: &World, machine: &str, key: &[u8], boot: TpmBoot) -> Result<Grant, Refusal> {
    let record = world.record("n1");
    let renewal = Renewal {
        identity: identity(machine, key, boot),
        uid: record.certificate_uid(),
        asked: at(2),
        not_after: at(12),
        ..renewal("m1", 1, 0)
    };
    block_on(world.ledger().renew(&renewal, renewal.asked))
}

fn refused(result: Result<Grant, Refusal>) -> Denial {
    match result {
        Err(Refusal::Deny(denial)) => denial,
        other => panic!("not denied: {other:?}"),
    }
}

/// A world in which `m1` holds `n1` with this TPM.
fn held(boot: TpmBoot) -> World {
    let world = World::new();
    let claim = by_tpm(claim("m1", "n1", 1, 0), "m1", b"ek", boot);
    world.claims(&claim, 0).unwrap();
    world
}

#[test]
fn a_changed_endorsement_key_is_denied_until_a_reset() {
    let world = held(boot(2, 0, 5));
    let other = by_tpm(claim("m1", "n1", 2, 1), "m1", b"other", boot(0, 0, 1));
    let denial = Denial::AnotherInstance(name("n1"), provider_id("m1"));

    assert_eq!(world.denied(&other, 1), denial);
    assert_eq!(
        refused(renewed(&world, "m1", b"other", boot(2, 0, 5))),
        denial
    );
    world.reset("n1");
    assert_eq!(world.granted(&other, 1), opened_at(1));
}

#[test]
fn a_tpm_of_another_existing_machine_is_denied() {
    let mut world = held(boot(2, 0, 5));
    let second = by_tpm(claim("m2", "n2", 2, 1), "m2", b"ek", boot(2, 0, 6));

    assert_eq!(
        world.denied(&second, 1),
        Denial::TpmOfAnotherMachine(name("n1"), provider_id("m1"))
    );
    let own = by_tpm(claim("m2", "n2", 2, 1), "m2", b"its own", boot(2, 0, 6));
    let elsewhere = held(boot(2, 0, 5));
    assert_eq!(elsewhere.granted(&own, 1), 1);

    world.becomes("m1", Some(MachineState::Deleting));
    assert_eq!(world.waits(&second, 1), "HolderLeaving");
    world.becomes("m1", None);
    assert_eq!(world.granted(&second, 1), 1);
}

#[test]
fn a_tpm_of_a_reset_machine_can_join_as_another_machine() {
    let world = held(boot(2, 0, 5));
    world.reset("n1");

    let second = by_tpm(claim("m2", "n2", 2, 1), "m2", b"ek", boot(2, 0, 6));
    assert_eq!(world.granted(&second, 1), 1);
}

#[test]
fn a_tpm_with_lower_boot_counters_is_denied_until_a_reset() {
    let denial = Denial::TpmRanBackwards(name("n1"), provider_id("m1"));
    for (later, is_denied) in [
        (boot(2, 3, 5), false),
        (boot(2, 3, 6), false),
        (boot(2, 4, 1), false),
        (boot(3, 0, 1), false),
        (boot(2, 3, 4), true),
        (boot(2, 2, 9), true),
        (boot(1, 9, 9), true),
        (boot(0, 0, 0), true),
    ] {
        let world = held(boot(2, 3, 5));
        let renewal = renewed(&world, "m1", b"ek", later);
        world.node("n1", false, 1);
        let again = by_tpm(claim("m1", "n1", 2, 1), "m1", b"ek", later);
        if !is_denied {
            assert!(renewal.is_ok(), "{later:?}: {renewal:?}");
            assert_eq!(world.granted(&again, 1), opened_at(1), "{later:?}");
            continue;
        }
        assert_eq!(refused(renewal), denial, "{later:?}");
        assert_eq!(world.denied(&again, 1), denial, "{later:?}");
        // A claim to another name is also denied.
        let renamed = by_tpm(claim("m1", "n3", 2, 1), "m1", b"ek", later);
        assert_eq!(world.denied(&renamed, 1), denial, "{later:?}");

        world.reset("n1");
        assert_eq!(world.granted(&again, 1), opened_at(1), "{later:?}");
        assert_eq!(world.record("n1").holder.boot, Some(later));
    }
}

#[test]
fn the_boot_counters_of_a_renewal_count_only_within_its_generation() {
    let noted = |boot, generation| LastIssued {
        generation,
        serial: "0a".to_owned(),
        not_after: at(12),
        time: SystemTime::UNIX_EPOCH,
        elapsed: Duration::ZERO,
        boot: Some(boot),
    };
    let world = held(boot(2, 0, 5));
    let note = |issued| block_on(world.records.note(&name("n1"), &issued)).unwrap();
    note(noted(boot(7, 0, 1), 1));
    assert!(matches!(
        refused(renewed(&world, "m1", b"ek", boot(6, 0, 1))),
        Denial::TpmRanBackwards { .. }
    ));
    assert!(renewed(&world, "m1", b"ek", boot(7, 0, 1)).is_ok());

    // A different TPM has different counters.
    world.reset("n1");
    let other = by_tpm(claim("m1", "n1", 2, 1), "m1", b"other", boot(1, 0, 1));
    assert_eq!(world.granted(&other, 1), opened_at(1));
    note(noted(boot(9, 0, 1), 1));
    assert!(renewed(&world, "m1", b"other", boot(1, 0, 2)).is_ok());
}

#[test]
fn tpm_boot_counters_are_compared_before_they_are_recorded() {
    let world = held(boot(2, 0, 5));
    let ledger = world.ledger();
    ledger.issued(
        &name("n1"),
        LastIssued {
            generation: 1,
            serial: "0a".to_owned(),
            not_after: at(10),
            time: at(1),
            elapsed: Duration::ZERO,
            boot: Some(boot(3, 0, 5)),
        },
    );
    let of = |boot| identity("m1", b"ek", boot);
    let renewed = |identity| {
        let renewal = Renewal {
            identity,
            uid: world.record("n1").certificate_uid(),
            asked: at(2),
            not_after: at(12),
            ..renewal("m1", 1, 0)
        };
        block_on(ledger.renew(&renewal, renewal.asked))
    };

    assert!(renewed(of(boot(3, 0, 5))).is_ok());
    assert!(matches!(
        refused(renewed(of(boot(2, 9, 9)))),
        Denial::TpmRanBackwards { .. }
    ));
}

#[test]
fn evidence_older_than_the_recorded_boot_state_fails_as_expired() {
    let world = held(boot(2, 0, 5));
    let note = LastIssued {
        generation: 1,
        serial: "0a".to_owned(),
        not_after: at(14),
        time: at(4),
        elapsed: Duration::ZERO,
        boot: Some(boot(2, 0, 900)),
    };
    block_on(world.records.note(&name("n1"), &note)).unwrap();
    let answered = |asked| {
        let renewal = Renewal {
            identity: identity("m1", b"ek", boot(2, 0, 500)),
            uid: world.record("n1").certificate_uid(),
            asked,
            not_after: at(12),
            ..renewal("m1", 1, 0)
        };
        block_on(world.ledger().renew(&renewal, renewal.asked)).unwrap_err()
    };

    assert!(matches!(
        answered(at(4) - Duration::from_secs(1)),
        Refusal::Fail(Failure::EvidenceExpired)
    ));
    for since in [at(4), at(5)] {
        assert!(matches!(
            answered(since),
            Refusal::Deny(Denial::TpmRanBackwards { .. })
        ));
    }
}

#[test]
fn a_machine_that_joined_with_its_tpm_is_denied_without_it() {
    let world = held(boot(2, 0, 5));
    let without = AttestedIdentity::vouched(Identity::of(provider_id("m1")));
    let renewal = Renewal {
        identity: without.clone(),
        uid: world.record("n1").certificate_uid(),
        asked: at(2),
        not_after: at(12),
        ..renewal("m1", 1, 0)
    };
    let denial = Denial::AnotherInstance(name("n1"), provider_id("m1"));

    let renewed = block_on(world.ledger().renew(&renewal, renewal.asked));
    assert_eq!(refused(renewed), denial);
    world.node("n1", false, 1);
    let again = Claim {
        assurance: Assurance::Attested(without),
        ..claim("m1", "n1", 2, 3)
    };
    assert_eq!(world.denied(&again, 3), denial);
    world.reset("n1");
    assert_eq!(world.granted(&again, 3), opened_at(3));
}

#[test]
fn a_tpm_cannot_join_a_second_machine_with_the_same_provider_id() {
    let machine = |name: &str| Machine {
        provider_id: None,
        ..Machine::new(name)
    };
    for (other, is_denied) in [("m2", true), ("m1", false)] {
        // Neither of the machines has a provider ID yet.
        let mut world = World::new();
        world.machines = vec![machine("m1"), machine("m2")];
        let first = by_tpm(claim("m1", "n1", 1, 0), "m1", b"ek", boot(1, 0, 100));
        world.claims(&first, 0).unwrap();

        let second = by_tpm(claim("m1", "n2", 2, 1), "m1", b"ek", boot(1, 0, 200));
        let second = Claim {
            machine_name: Some(other.to_owned()),
            ..second
        };
        let claimed = world.claims(&second, 1);

        let reason = claimed.as_ref().err().and_then(|refusal| match refusal {
            Refusal::Deny(denial) => Some(denial.reason()),
            Refusal::Fail(_) | Refusal::Retry(_) => None,
        });
        let expected = is_denied.then_some("TpmOfAnotherMachine");
        assert_eq!(reason, expected, "{claimed:?}");
    }
}
