use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::ledger::Claimant;
use crate::testing::records::{LONGEST, World, at, by_node, claim, insecure, policy, provider_id};
use crate::verifier::{Assurance, AttestedIdentity};

fn identity(machine: &str) -> Identity {
    Identity::of(provider_id(machine))
}

/// All facts about `m1` that evidence can contain.
fn measured() -> Identity {
    Identity {
        instance: Some("i-1".to_owned()),
        endorsement_key: Some(KeyDigest::of(b"tpm")),
        boot: Some(TpmBoot {
            resets: 1,
            restarts: 2,
            clock: 3,
        }),
        ..identity("m1")
    }
}

/// The record for a claim with key 1 at hour 0, with evidence for this identity.
fn record_of(identity: Identity) -> Record {
    let claim = Claim {
        assurance: Assurance::Attested(AttestedIdentity::vouched(identity)),
        ..claim("m1", "n1", 1, 0)
    };
    Record::first(&claim, RecordUid::new([7; 16]), None, at(0))
}

#[test]
fn a_record_matches_its_machine_its_tpm_or_its_key() {
    let record = record_of(measured());
    let (own, another) = (KeyDigest::of(&[1]), KeyDigest::of(&[2]));
    let same_tpm = Identity {
        endorsement_key: Some(KeyDigest::of(b"tpm")),
        ..identity("m2")
    };
    let other_tpm = Identity {
        endorsement_key: Some(KeyDigest::of(b"another")),
        ..identity("m2")
    };

    assert!(record.concerns(&identity("m1"), another));
    assert!(record.concerns(&same_tpm, another));
    assert!(record.concerns(&identity("m2"), own));
    assert!(!record.concerns(&identity("m2"), another));
    assert!(!record.concerns(&other_tpm, another));
    // If neither of two machines has a TPM, this does not count as the same TPM.
    assert!(!record_of(identity("m1")).concerns(&identity("m2"), another));
}

#[test]
fn the_holder_contains_all_attested_facts() {
    let assurance = record_of(measured()).holder.assurance();

    assert_eq!(assurance.identity(), &measured());
    assert!(matches!(assurance, Assurance::Attested(_)));
}

#[test]
fn a_different_instance_with_the_same_provider_id_is_not_the_holder() {
    let instance = |name: &str| Identity {
        instance: Some(name.to_owned()),
        ..identity("m1")
    };
    let holder = record_of(instance("i-1")).holder;

    assert!(holder.is(&instance("i-1")));
    assert!(!holder.is(&instance("i-2")));
    // The cloud does not have separate IDs for instances.
    assert!(holder.is(&identity("m1")));
}

#[test]
fn a_tombstone_has_no_reset_and_no_superseded_generation() {
    let mut record = record_of(identity("m1"));
    record.superseded = Some(1);
    record.reset = Some(record.generation);

    let retired = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));

    assert!(!retired.is_live());
    assert_eq!((retired.superseded, retired.reset), (None, None));
}

#[test]
fn a_revoked_previous_generation_does_not_revoke_the_current_one() {
    let mut record = record_of(identity("m1"));
    record.generation = 9;
    let of_generation = |generation| Record {
        revoked: Some(Revoked {
            generation,
            at: at(1),
        }),
        ..record.clone()
    };
    let lowest_valid = |record: Record| {
        let revoked = record.revoked_generations(LONGEST, at(1));
        revoked.map(|revoked| revoked.lowest_valid)
    };

    assert_eq!(lowest_valid(of_generation(8)), None);
    assert_eq!(lowest_valid(of_generation(9)), Some(10));
}

#[test]
fn revoked_generations_are_listed_until_they_expire() {
    let world = World::held(policy());
    world.revoke("n1", 1);
    let record = world.record("n1");

    let listed = record.revoked_generations(LONGEST, at(1)).unwrap();

    let before = listed.until - Duration::from_secs(1);
    assert_eq!(record.revoked_generations(LONGEST, before), Some(listed));
    assert_eq!(record.revoked_generations(LONGEST, listed.until), None);
}

#[test]
fn a_slow_clock_does_not_shorten_a_revocation() {
    let world = World::held(policy());
    world.revoke("n1", 5);
    let record = world.record("n1");
    let expected = record.revoked_generations(LONGEST, at(5)).unwrap();
    let now = PresentTime {
        earlier: at(1),
        later: at(5),
    };

    assert_eq!(record.revoked_generations(LONGEST, now), Some(expected));
    // On both clocks, the revocation is in the future.
    let ahead = record.revoked_generations(LONGEST, at(1)).unwrap();
    assert!(ahead.until < expected.until);
}

#[test]
fn a_record_with_hostile_times_ends_at_a_time_that_can_be_written() {
    let last = Timestamp::from_second(Timestamp::MAX.as_second()).unwrap();
    let last = SystemTime::from(last);
    assert_eq!(whole_seconds(last), last);
    let mut revoked = record_of(identity("m1"));
    // If the time of a revocation is in the future, the time of the claim is used instead.
    revoked.opened.time = last;
    revoked.revoked = Some(Revoked {
        generation: 1,
        at: last,
    });
    let mut long = record_of(identity("m1"));
    (long.opened.time, long.not_after) = (UNIX_EPOCH, last);

    let listed = revoked.revoked_generations(LONGEST, at(1)).unwrap();
    let retired = long.retired(TombstoneReason::MachineGone, LONGEST, at(1));

    assert_eq!(listed.until, last);
    assert_eq!(retired.tombstone.unwrap().until, last);
}

#[test]
fn no_generation_is_revoked_before_the_first_one() {
    let mut record = record_of(identity("m1"));
    record.former_until = Some(at(9));
    let revoked = |record: &Record| {
        let revoked = record.revoked_generations(LONGEST, at(1));
        revoked.map(|revoked| (revoked.lowest_valid, revoked.until))
    };
    assert_eq!(record.generation, 1);
    assert_eq!(revoked(&record), None);

    record.generation = 2;
    assert_eq!(revoked(&record), Some((2, at(9))));
}

#[test]
fn only_a_claim_without_evidence_is_matched_by_its_machine() {
    let unproved = insecure(claim("m1", "n1", 1, 0));
    let nameless = |claim: &Claim| Claim {
        machine_name: None,
        ..claim.clone()
    };
    let holder = RecordHolder::of(&unproved);
    assert_eq!(unproved.claimant, Claimant::Token);
    assert!(unproved.is_of_machine(&holder));

    assert!(!claim("m1", "n1", 1, 0).is_of_machine(&holder));
    assert!(!by_node(unproved.clone()).is_of_machine(&holder));
    let proved = RecordHolder::of(&claim("m1", "n1", 1, 0));
    assert!(!unproved.is_of_machine(&proved));
    let another = insecure(claim("m2", "n1", 1, 0));
    assert!(!another.is_of_machine(&holder));
    let unnamed = RecordHolder::of(&nameless(&unproved));
    assert!(!nameless(&unproved).is_of_machine(&unnamed));
}
