use super::*;
use crate::crd::RevokedGenerations;
use crate::ledger::*;
use crate::pace::PAGE;
use crate::refusal::{Denial, Refusal};
use crate::testing::pauses;
use crate::testing::records::{
    LONGEST, World, at, claim, insecure, name, opened_at, policy, provider_id,
};

mod future;
mod released;

/// The list in the workload cluster after one round with the records in the world.
fn published(world: &World, hour: u32) -> RevokedNodeCredentialsSpec {
    let records = [world.record("n1")];
    let records = RevokedNodeCredentialsSpec::of_records(&records, LONGEST, at(hour));
    let (revocations, nothing) = (&world.revocations, RevokedNodeCredentialsSpec::default());
    revocations.merged(nothing, records, |list| list, at(hour))
}

fn raise_floor(world: &World, hour: u32) {
    world.revocations.decide(RevocationDecisions {
        floor: opened_at(hour),
        ..RevocationDecisions::default()
    });
}

#[track_caller]
fn assert_revoked(denial: &Denial, generation: u64) {
    let is_it = matches!(denial, Denial::IdentityRevoked(_, revoked) if *revoked == generation);
    assert!(is_it, "{denial:?}");
}

/// This cluster's management cluster was restored from a backup that is older than the revocation of `m1`.
fn restored_before_the_revocation() -> World {
    let world = World::held(policy());
    world.revoke("n1", 1);
    let list = published(&world, 1);
    world.edit("n1", |record| record.revoked = None);
    world.revocations.read(list);
    world
}

#[test]
fn a_revoked_machine_without_a_record_is_denied_until_released() {
    for is_gone in [false, true] {
        let world = restored_before_the_revocation();
        world.reset("n1");
        let world = if is_gone {
            let mut other = World::new();
            other.revocations = world.revocations.clone();
            other
        } else {
            world
        };

        assert_revoked(&world.denied(&claim("m1", "n1", 2, 2), 2), 1);
        assert_revoked(&world.denied(&claim("m1", "n2", 2, 2), 2), 1);
        let mut decisions = RevocationDecisions::default();
        decisions.release(provider_id("m1"), at(0));
        world.revocations.decide(decisions.clone());
        assert_revoked(&world.denied(&claim("m1", "n1", 2, 2), 2), 1);
        decisions.release(provider_id("m1"), at(1));
        world.revocations.decide(decisions);
        assert_revoked(&world.denied(&claim("m1", "n1", 1, 2), 2), 1);
        let expected = if is_gone { 1 } else { opened_at(2) };
        assert_eq!(world.granted(&claim("m1", "n1", 2, 2), 2), expected);
    }
}

/// The UID in the record is immutable. The writer chooses the UID when it creates the record.
#[test]
fn the_stronger_of_two_revocations_with_one_uid_is_listed() {
    let revoked = {
        let world = World::held(policy());
        world.edit("n1", |record| record.generation = 7);
        world.revoke("n1", 7);
        world.record("n1")
    };
    let weaker = {
        let world = World::held(policy());
        world.edit("n1", |record| {
            record.uid = revoked.uid;
            record.generation = 2;
            record.former_until = Some(at(2));
        });
        world.record("n1")
    };
    let list =
        |records: [&Record; 2]| RevokedNodeCredentialsSpec::of_records(records, LONGEST, at(1));
    let alone = RevokedNodeCredentialsSpec::of_records([&revoked], LONGEST, at(1));
    assert_eq!(alone.revoked.values().next().unwrap().lowest_valid, 8);

    assert_eq!(list([&revoked, &weaker]), alone);
    assert_eq!(list([&weaker, &revoked]), alone);
}

/// The record belongs to a deleted machine. According to the clock of the replica that decides, the machine's
/// certificates have expired.
#[test]
fn a_fast_clock_does_not_shorten_the_revocation_after_a_reclaim() {
    let world = World::held(policy());
    let record = world
        .record("n1")
        .retired(TombstoneReason::MachineGone, LONGEST, at(1));
    let end = record.former_end().unwrap();
    let ahead = end + Duration::from_hours(24);

    let again = record.reopened(&claim("m1", "n1", 2, 2), None, LONGEST, ahead);

    assert_eq!(again.former_until, Some(end));
    let list = RevokedNodeCredentialsSpec::of_records([&again], LONGEST, at(2));
    assert_eq!(list.revoked.len(), 1);
    let list = RevokedNodeCredentialsSpec::of_records([&again], LONGEST, ahead);
    assert!(list.revoked.is_empty());
}

#[test]
fn another_machine_can_get_the_name_of_a_revoked_machine() {
    let mut world = restored_before_the_revocation();
    world.becomes("m1", None);

    assert_eq!(world.granted(&claim("m2", "n1", 2, 2), 2), opened_at(2));
}

#[test]
fn a_certificate_revoked_only_by_the_list_can_neither_renew_nor_serve() {
    let world = restored_before_the_revocation();
    let uid = world.record("n1").certificate_uid();

    let renewed = world.renewal_denied("m1", 1, 2);

    assert!(matches!(renewed, Denial::FormerCertificate(_, of) if of == uid));
    for presented in [Some(uid), None] {
        let ledger = world.ledger();
        let name = name("n1");
        let holder = ledger.holder(&name, presented);
        let Err(Refusal::Deny(denial)) = futures::executor::block_on(holder) else {
            panic!("not denied");
        };
        assert_revoked(&denial, 1);
    }
}

#[test]
fn a_retired_record_does_not_block_its_machine() {
    let world = World::held(policy());
    world.edit("n1", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });
    let list = published(&world, 1);
    assert_eq!(list.revoked.len(), 1);
    assert!(list.revoked_keys.is_empty());
    world.revocations.read(list);

    assert_eq!(world.granted(&claim("m1", "n1", 2, 2), 2), opened_at(2));
}

#[test]
fn a_later_generation_presented_with_evidence_is_recorded() {
    let later = |change: fn(&World), machine: &str, generation: u64| {
        let world = World::held(policy());
        change(&world);
        assert!(matches!(
            world.renewal_denied(machine, generation, 2),
            Denial::FormerCertificate(..)
        ));
        world.records.later(&name("n1"))
    };
    let retired = |world: &World| {
        world.edit("n1", |record| {
            *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
        });
    };

    assert_eq!(later(|_| {}, "m1", 7), Some(7));
    assert_eq!(later(|_| {}, "m2", 7), None, "another machine");
    assert_eq!(later(retired, "m1", 7), None, "a tombstone");
    assert_eq!(
        later(|world| raise_floor(world, 1), "m1", 7),
        None,
        "refused"
    );
    let former = |world: &World| world.edit("n1", |record| record.generation = 9);
    assert_eq!(later(former, "m1", 7), None, "a former generation");
}

#[test]
fn a_denied_renewal_of_the_current_generation_shows_no_restore() {
    let world = World::held(policy());
    world.revoke("n1", 1);

    assert_revoked(&world.renewal_denied("m1", 1, 2), 1);
    assert_eq!(world.records.later(&name("n1")), None);
}

#[test]
fn claims_and_renewals_wait_until_the_revocation_list_is_read() {
    let world = World::held(policy());
    world.revocations.forget();
    assert!(!world.revocations.is_read());

    assert_eq!(
        world.waits(&claim("m1", "n1", 1, 0), 0),
        "LedgerUnavailable"
    );
    let renewed = world.renews("m1", 1, 1);
    assert!(matches!(renewed, Err(Refusal::Retry(_))), "{renewed:?}");
    world
        .revocations
        .read(RevokedNodeCredentialsSpec::default());
    assert!(world.renews("m1", 1, 1).is_ok());
}

#[test]
fn a_new_generation_is_at_or_above_the_floor_and_the_valid_minimum() {
    let world = World::held(policy());
    raise_floor(&world, 1);

    let first = world.granted(&claim("m2", "n2", 2, 2), 2);
    assert_eq!(first, opened_at(2));
    assert!(matches!(
        world.renewal_denied("m1", 1, 2),
        Denial::FormerCertificate(..)
    ));
    assert_revoked(&world.denied(&claim("m1", "n1", 1, 2), 2), 1);
    assert_eq!(world.granted(&claim("m1", "n1", 3, 2), 2), opened_at(2));
    // The list contains a generation that is later than the generation of the record from a backup.
    let mut list = RevokedNodeCredentialsSpec::default();
    let lowest_valid = opened_at(9);
    let until = at(20);
    let entry = RevokedGenerations {
        lowest_valid,
        until,
    };
    let uid = world.record("n1").uid.to_string();
    list.revoked.insert(uid, entry);
    world.revocations.read(list);
    assert_eq!(world.granted(&claim("m1", "n1", 4, 3), 3), lowest_valid);
}

#[test]
fn an_insecure_node_below_the_floor_rejoins_with_a_new_key_when_down() {
    let world = World::new();
    world.claims(&insecure(claim("m1", "n1", 1, 0)), 0).unwrap();
    world.node("n1", false, 2);
    assert_eq!(
        world.waits(&insecure(claim("m1", "n1", 2, 2)), 2),
        "IdentityLive"
    );
    raise_floor(&world, 1);

    assert_eq!(
        world.granted(&insecure(claim("m1", "n1", 2, 2)), 2),
        opened_at(2)
    );
    // A running node has a later generation than its record from a backup.
    raise_floor(&world, 3);
    world.node("n1", true, 4);
    assert_eq!(
        world.waits(&insecure(claim("m1", "n1", 3, 4)), 4),
        "IdentityLive"
    );
}

#[test]
fn the_generation_floor_and_the_entries_grow_until_they_expire() {
    let world = World::held(policy());
    raise_floor(&world, 5);
    let mut listed = RevokedNodeCredentialsSpec {
        lowest_valid_generation: opened_at(3),
        ..RevokedNodeCredentialsSpec::default()
    };
    let nothing = RevokedNodeCredentialsSpec::default;
    let merged = |listed| {
        world
            .revocations
            .merged(listed, nothing(), |list| list, at(9))
    };
    assert_eq!(merged(listed.clone()).lowest_valid_generation, opened_at(5));
    listed.lowest_valid_generation = opened_at(7);
    world.revocations.read(listed);
    // A user deleted the list and the annotation.
    world.revocations.decide(RevocationDecisions::default());

    assert_eq!(merged(nothing()).lowest_valid_generation, opened_at(7));
}

#[test]
fn decisions_are_read_from_the_written_annotations() {
    let mut decisions = RevocationDecisions {
        floor: 1_795_849_200,
        ..RevocationDecisions::default()
    };
    decisions.release(provider_id("m@1"), at(2));
    decisions.release(provider_id("m2"), at(3));
    decisions.release(provider_id("m2"), at(1));
    let annotations = BTreeMap::from([
        (
            LOWEST_VALID_GENERATION_ANNOTATION.to_owned(),
            decisions.floor.to_string(),
        ),
        (
            RELEASED_MACHINES_ANNOTATION.to_owned(),
            decisions.released_text(),
        ),
    ]);

    let read = RevocationDecisions::of_annotations(Some(&annotations));

    assert_eq!(read, decisions);
    assert_eq!(read.released_text().split(' ').count(), 2);
    let none = RevocationDecisions::default();
    assert_eq!(RevocationDecisions::of_annotations(None), none);
    // An object cannot contain a larger number.
    for text in ["no @ x@y 1", "9223372036854775807"] {
        let invalid = annotations
            .keys()
            .map(|name| (name.clone(), text.to_owned()));
        let invalid = RevocationDecisions::of_annotations(Some(&invalid.collect()));
        assert_eq!(invalid, none, "{text}");
    }
}

#[test]
fn a_machine_that_is_revoked_after_its_release_is_stopped_again() {
    let world = restored_before_the_revocation();
    let mut decisions = RevocationDecisions::default();
    decisions.release(provider_id("m1"), at(5));
    world.revocations.decide(decisions.clone());
    assert_eq!(world.granted(&claim("m1", "n1", 2, 2), 2), opened_at(2));
    // The time of the revocation comes from a slow clock.
    assert!(decisions.take_back(&provider_id("m1")));
    assert!(!decisions.take_back(&provider_id("m1")));
    world.revocations.decide(decisions);
    world.revoke("n1", 3);
    world.revocations.read(published(&world, 3));
    world.edit("n1", |record| record.revoked = None);

    assert_revoked(&world.denied(&claim("m1", "n1", 3, 4), 4), opened_at(2));
}

/// The list that revokes one key.
fn list_of(entry: &RevokedKey) -> RevokedNodeCredentialsSpec {
    let mut list = RevokedNodeCredentialsSpec::default();
    list.revoked_keys.insert("key".to_owned(), entry.clone());
    list
}

fn revoked_key(node: &str, revoked_at: u32, until: u32) -> RevokedKey {
    RevokedKey {
        node_name: node.to_owned(),
        generation: 1,
        provider_id: Some(provider_id("m1").to_string()),
        revoked_at: at(revoked_at),
        until: at(until),
    }
}

#[test]
fn the_later_of_two_revocations_of_a_key_applies() {
    let merged = |one: &RevokedKey, other: &RevokedKey| {
        let mut list = list_of(one);
        list.merge(list_of(other));
        list.revoked_keys.remove("key").unwrap()
    };
    let (early, late) = (revoked_key("n1", 1, 9), revoked_key("n2", 2, 8));
    let both = RevokedKey {
        until: at(9),
        ..late.clone()
    };
    assert_eq!(merged(&early, &late), both);
    assert_eq!(merged(&late, &early), both);

    let released = RevokedKey {
        provider_id: None,
        ..late.clone()
    };
    assert_eq!(merged(&released, &late), late);
    assert_eq!(merged(&late, &released), late);
    let same_time = revoked_key("n3", 2, 8);
    assert_eq!(merged(&late, &same_time), late);
}

#[test]
fn a_revocation_entry_is_listed_until_it_expires() {
    let mut list = list_of(&revoked_key("n1", 1, 3));
    let entry = RevokedGenerations {
        lowest_valid: 2,
        until: at(3),
    };
    list.revoked.insert("uid".to_owned(), entry);
    let pruned = |now| {
        let mut list = list.clone();
        list.prune(now);
        list
    };

    assert_eq!(pruned(at(3) - Duration::from_secs(1)), list);
    assert_eq!(pruned(at(3)), RevokedNodeCredentialsSpec::default());
}

#[test]
fn the_known_entries_and_decisions_are_returned() {
    let revocations = Revocations::unread();
    assert!(!revocations.is_read());
    assert!(revocations.is_empty());
    assert_eq!(revocations.len(), (0, 0));

    let mut list = list_of(&revoked_key("n1", 1, 3));
    let entry = RevokedGenerations {
        lowest_valid: 2,
        until: at(3),
    };
    for uid in ["one", "two"] {
        list.revoked.insert(uid.to_owned(), entry);
    }
    revocations.read(list);
    assert!(revocations.is_read());
    assert!(!revocations.is_empty());
    assert_eq!(revocations.len(), (2, 1));

    let decisions = RevocationDecisions {
        floor: 7,
        ..RevocationDecisions::default()
    };
    revocations.decide(decisions.clone());
    assert_eq!(*revocations.decisions(), decisions);
}

#[test]
fn the_revocations_of_many_records_are_read_in_pages() {
    let world = World::held(policy());
    let live = Arc::new(stored(&world));
    world.revoke("n1", 1);
    let revoked = Arc::new(stored(&world));
    let records = vec![live; 3 * PAGE - 1];
    let records = [&records[..], std::slice::from_ref(&revoked)].concat();

    let read = RecordRevocations::read(&records, LONGEST, at(1));

    let (read, count) = pauses(read);
    assert_eq!(count, 3);
    let expected = RevokedNodeCredentialsSpec::of_records([&revoked.record], LONGEST, at(1));
    assert_eq!(read.list, expected);
    let end = expected.revoked.values().next().unwrap().until;
    assert_eq!(read.first_end, Some(end));
    // If two records have the same UID, the first expiry time changes the entry for both of them.
    let mut longer = (*revoked).clone();
    longer.record.former_until = Some(end + Duration::from_hours(1));
    let both = [Arc::new(longer), revoked];
    let (read, _) = pauses(RecordRevocations::read(&both, LONGEST, at(1)));
    assert_eq!(read.list.revoked.len(), 1);
    assert_eq!(read.first_end, Some(end));
    let (read, _) = pauses(RecordRevocations::read(&[], LONGEST, at(1)));
    assert_eq!(read.first_end, None);
}

fn stored(world: &World) -> Stored {
    let stored = futures::executor::block_on(world.records.read(&name("n1")));
    stored.unwrap().unwrap()
}

#[test]
fn a_revoked_machine_is_found_by_its_index() {
    let mut list = RevokedNodeCredentialsSpec::default();
    for number in 0..300_u32 {
        let key = KeyDigest::of(&number.to_be_bytes()).to_string();
        let mut entry = revoked_key("n1", 1, 9);
        entry.provider_id = Some(provider_id(&format!("m{}", number % 100)).to_string());
        entry.generation = u64::from(number);
        list.revoked_keys.insert(key, entry);
    }
    let other = KeyDigest::of(b"other");
    let known = KnownRevocations::new(list.clone());

    for machine in 0..100 {
        let machine = provider_id(&format!("m{machine}"));
        let mut entries = list.revoked_keys.values();
        let first = entries.find(|entry| entry.provider_id.as_deref() == Some(machine.as_str()));
        assert_eq!(known.stops(other, &machine), first);
    }
    assert_eq!(known.machines.len(), 100);
    assert_eq!(known.stops(other, &provider_id("m100")), None);
    let own = known.stops(KeyDigest::of(&7_u32.to_be_bytes()), &provider_id("m8"));
    assert_eq!(own.unwrap().generation, 7, "the key first");
}
