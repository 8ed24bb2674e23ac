use futures::executor::block_on;

use super::others::MAX_LIVE;
use crate::crd::TombstoneReason;
use crate::identifiers::KeyDigest;
use crate::ledger::rules::{HolderState, Others};
use crate::ledger::{Adoption, Claim, LedgerPolicy, Record, Records as _, RequestRef};
use crate::refusal::Refusal;
use crate::testing::faulty_records::Fault;
use crate::testing::records::{LONGEST, World, at, claim, insecure, name, policy, provider_id};
use crate::verifier::{Assurance, AttestedIdentity, Identity};

mod order;

#[test]
fn a_claim_with_a_stale_cache_finds_its_record() {
    let world = World::held(policy());
    world.node("n1", true, 1);
    let ledger = world.ledger_over(world.faulty(Fault::Uncached));

    let again = block_on(ledger.claim(&claim("m1", "n1", 1, 0), at(1)));

    assert_eq!(again.unwrap().uid.generation, 1);
}

#[test]
fn a_claim_does_not_change_a_tombstone_missing_from_its_cache() {
    let world = World::held(policy());
    world.edit("n1", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });
    let before = world.record("n1");
    let ledger = world.ledger_over(world.faulty(Fault::Outdated));

    let granted = block_on(ledger.claim(&claim("m1", "n2", 2, 2), at(2)));

    assert_eq!(granted.unwrap().uid, world.record("n2").certificate_uid());
    assert_eq!(world.record("n1"), before);
}

#[test]
fn a_ledger_reports_whether_its_revocation_list_is_read() {
    let world = World::held(policy());
    let ledger = world.ledger();
    assert!(ledger.revocations().is_read());

    world.revocations.forget();

    assert!(!ledger.revocations().is_read());
}

#[test]
fn an_unattested_holder_matches_only_the_machine_of_its_token() {
    let mut world = World::with(policy());
    world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
    world.claims(&insecure(claim("m2", "n2", 2, 0)), 0).unwrap();
    let holders = ["n1", "n2"].map(|node| world.record(node).holder);
    for machine in ["m1", "m2"] {
        world.becomes(machine, None);
    }
    let ledger = world.ledger();
    let can_be = |holder, machine| block_on(ledger.can_be(holder, machine)).unwrap();

    let [attested, insecure] = &holders;
    assert!(can_be(attested, "m1"));
    assert!(can_be(attested, "m3"));
    assert!(can_be(insecure, "m2"));
    assert!(!can_be(insecure, "m3"));
    // The machine is a pool member without a Machine.
    assert!(can_be(insecure, provider_id("m2").as_str()));
}

#[test]
fn a_claim_with_more_than_64_live_records_of_its_key_waits() {
    let world = World::held(policy());
    let add = |number: usize, is_live: bool| {
        let mut record = world.record("n1");
        record.node_name = name(&format!("other-{number}"));
        if !is_live {
            record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
        }
        block_on(world.records.create(&record)).unwrap();
    };
    // The record of `n1` contains the same key.
    (1..MAX_LIVE).for_each(|number| add(number, true));
    (1000..1100).for_each(|number| add(number, false));
    let copied = claim("m3", "n3", 1, 1);
    assert_eq!(world.denied(&copied, 1).reason(), "KeyOfAnotherMachine");

    add(MAX_LIVE, true);
    assert_eq!(world.waits(&copied, 1), "LedgerUnavailable");
}

#[test]
fn a_recovery_with_more_than_64_records_of_its_uid_waits() {
    let world = World::held(LedgerPolicy {
        adoption: Adoption::Recover,
        ..policy()
    });
    let lost = block_on(world.records.read(&name("n1"))).unwrap().unwrap();
    block_on(world.records.delete(&name("n1"), &lost.version)).unwrap();
    let add = |number: usize| {
        let mut record = lost.record.clone();
        record.node_name = name(&format!("other-{number}"));
        record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
        block_on(world.records.create(&record)).unwrap();
    };
    let waits = |generation| match world.renews("m1", generation, 2) {
        Err(Refusal::Retry(deferral)) => deferral.reason(),
        other => panic!("not put off: {other:?}"),
    };
    (0..MAX_LIVE).for_each(add);
    let denied = |generation| world.renewal_denied("m1", generation, 2).reason();
    assert_eq!(denied(1), "FormerCertificate");

    add(MAX_LIVE);

    assert_eq!(waits(1), "LedgerUnavailable");
    // The rules deny this generation, even without reading the records.
    assert_eq!(denied(u64::MAX), "FormerCertificate");
}

/// Adds a copy of the record of `n1` under this name.
fn add(world: &World, node: &str, change: impl FnOnce(&mut Record)) {
    let mut record = world.record("n1");
    record.node_name = name(node);
    change(&mut record);
    block_on(world.records.create(&record)).unwrap();
}

/// Returns the other records that this claim keeps while it reads records.
fn others_of(world: &World, claim: &Claim) -> Others {
    let ledger = world.ledger();
    let revoked = ledger.revocations.known().unwrap();
    block_on(ledger.others(claim, None, &revoked, at(1))).unwrap()
}

#[test]
fn a_claim_keeps_the_texts_of_one_record_of_its_machine() {
    let world = World::held(policy());
    for node in ["o1", "o2"] {
        add(&world, node, |record| {
            record.holder.instance = Some("i-1".to_owned());
            record.opened.stale_node = Some("a node".to_owned());
        });
    }

    let others = others_of(&world, &claim("m1", "n9", 2, 1));

    let first = others.live.unwrap().record;
    assert_eq!(first, world.record(first.node_name.as_str()));
    assert_eq!(others.more_live.len(), 2);
    for kept in others.more_live {
        let mut stored = world.record(kept.node_name.as_str());
        stored.holder.instance = None;
        stored.holder.machine_name = None;
        stored.opened.request = RequestRef::default();
        stored.opened.stale_node = None;
        assert_eq!(kept, stored);
    }
}

#[test]
fn a_claim_keeps_one_other_holder_of_its_tpm_and_of_its_key() {
    let world = World::held(policy());
    let tpm = Some(KeyDigest::of(b"ek"));
    // Only the Machine `m2` exists.
    for (node, machine) in [("a1", "m8"), ("a2", "m2"), ("a3", "m9")] {
        add(&world, node, |record| {
            record.holder.provider_id = provider_id(machine);
            record.holder.machine_name = Some(machine.to_owned());
            record.holder.endorsement_key = tpm;
        });
    }
    let identity = Identity {
        endorsement_key: tpm,
        ..Identity::of(provider_id("m3"))
    };
    let claim = Claim {
        assurance: Assurance::Attested(AttestedIdentity::vouched(identity)),
        ..claim("m3", "n3", 1, 1)
    };

    let others = others_of(&world, &claim);

    let of_tpm = (name("a2"), provider_id("m2"), HolderState::Alive);
    assert_eq!(others.tpm_of, Some(of_tpm));
    assert_eq!(others.key_of, Some((name("a1"), provider_id("m8"))));
    assert_eq!(world.denied(&claim, 1).reason(), "TpmOfAnotherMachine");
}
