use std::sync::Arc;

use futures::executor::block_on;

use super::*;
use crate::identifiers::TokenId;
use crate::inventory::{Inventory, Machine, MachineState, StaticInventory, TokenOwner};
use crate::ledger::record::GRANT_LAG;
use crate::ledger::{
    LastIssued, MISSING_MACHINE_TIMEOUT, MemoryRecords, Records, Renewal, SeenBoot,
};
use crate::nodes::{Node, Nodes as _};
use crate::refusal::Unavailable;
use crate::scope::Enforcement;
use crate::testing::records::{
    LONGEST, World, at, claim, insecure, machine, name, opened_at, policy, provider_id, renewal,
};
use crate::time::since_epoch;
use crate::verifier::{AttestedIdentity, Identity};

mod expiries;
mod nodes;
mod pauses;
mod retirement;
mod unwritten;

/// Runs a sweep for which the Nodes were listed, and returns its result.
fn swept(world: &World, hour: u32) -> SweepReport {
    let listed = node(world).is_some().then(|| "n1".to_owned());
    let listed = listed.into_iter().collect();
    block_on(world.ledger().sweep_at(at(hour), &listed)).unwrap()
}

/// Runs a sweep at this hour, after which each missing machine has been missing for ten minutes, and returns its
/// result.
fn swept_again(world: &World, hour: u32) -> SweepReport {
    block_on(
        world
            .ledger()
            .sweep_at(at(hour) - MISSING_MACHINE_TIMEOUT, &BTreeSet::new()),
    )
    .unwrap();
    swept(world, hour)
}

fn count(world: &World) -> usize {
    block_on(world.records.all()).unwrap().len()
}

fn node(world: &World) -> Option<Node> {
    block_on(world.nodes.state(&name("n1"))).unwrap()
}

#[test]
fn a_sweep_counts_records_and_reports_the_earliest_expiry() {
    let world = World::held(policy());
    world.claims(&insecure(claim("m2", "n2", 2, 3)), 3).unwrap();
    world.revoke("n1", 3);

    assert_eq!(
        swept(&world, 4),
        SweepReport {
            // The expiry time for n2. The certificate of n1 expires earlier, but n1 cannot renew.
            earliest_expiry: Some(at(13)),
            overdue: Some(0),
            live: 2,
            attested: 1,
            revoked: 1,
            tombstones: 0,
            held_back: None,
            done: Vec::new(),
            failed: None,
            not_removed: BTreeSet::new(),
        }
    );
}

#[test]
fn a_deleted_machine_leaves_a_tombstone_until_its_certificates_expire() {
    let mut world = World::held(policy());
    swept(&world, 1);
    world.becomes("m1", Some(MachineState::Deleting));
    swept(&world, 1);
    assert!(world.record("n1").is_live());

    world.becomes("m1", None);
    assert_eq!(swept_again(&world, 2).tombstones, 1);
    let tombstone = world.record("n1").tombstone.unwrap();
    assert_eq!(tombstone.reason, TombstoneReason::MachineGone);
    assert_eq!(
        (tombstone.since, tombstone.until),
        (at(2), at(22) + GRANT_LAG)
    );

    swept(&world, 22);
    assert_eq!(count(&world), 1);
    swept(&world, 23);
    assert_eq!(count(&world), 0);
}

#[test]
fn a_tombstone_is_deleted_only_after_its_certificates_expire() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    swept_again(&world, 2);
    let record = world.record("n1");
    let end = record.former_end().unwrap();
    let gc_action = |now| gc_action(&record, HolderState::Gone, false, (now, now));

    assert_eq!(gc_action(end), None);
    assert_eq!(
        gc_action(end + Duration::from_secs(1)),
        Some(GcAction::Delete)
    );
}

#[test]
fn a_sweep_deletes_the_stale_node_after_a_claim() {
    let world = World::new();
    world.node("n1", false, 0);
    world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
    world.node("n1", false, 0);

    block_on(
        world
            .ledger()
            .sweep_at(at(0) + STALE_NODE_LOOKED_FOR, &BTreeSet::new()),
    )
    .unwrap();
    assert_eq!(node(&world), None);
}

#[test]
fn a_sweep_leaves_a_stale_node_to_the_claim_after_10_minutes() {
    let ten_minutes = Duration::from_mins(10);
    for (after, is_deleted) in [
        (ten_minutes, true),
        (ten_minutes + Duration::from_secs(1), false),
    ] {
        let world = World::new();
        world.node("n1", false, 0);
        world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
        world.node("n1", false, 0);

        block_on(world.ledger().sweep_at(at(0) + after, &BTreeSet::new())).unwrap();

        assert_eq!(node(&world).is_none(), is_deleted, "{after:?}");
    }
}

#[test]
fn a_tombstones_node_is_checked_for_10_minutes_and_if_listed() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    swept_again(&world, 2);
    let since = world.record("n1").tombstone.unwrap().since;
    let unlisted = |world: &World, minutes| {
        world.node_of("n1", "m1", false, 3);
        let now = since + Duration::from_mins(minutes);
        block_on(world.ledger().sweep_at(now, &BTreeSet::new())).unwrap();
        node(world)
    };
    assert_eq!(unlisted(&world, 10), None);
    assert!(unlisted(&world, 11).is_some());

    swept(&world, 3);

    assert_eq!(node(&world), None);
}

#[test]
fn a_sweep_reports_each_action_once() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    let (node_name, generation) = (name("n1"), 1);
    let retired = SweepAction {
        node_name: node_name.clone(),
        generation,
        what: Swept::Retired,
    };
    assert_eq!(swept_again(&world, 2).done, [retired]);

    world.node_of("n1", "m1", false, 3);
    let removed = SweepAction {
        node_name,
        generation,
        what: Swept::NodeRemoved,
    };
    assert_eq!(swept(&world, 3).done, [removed]);
    assert_eq!(swept(&world, 3).done, []);
}

#[test]
fn the_removal_of_a_stale_node_is_reported_once() {
    let world = World::new();
    world.node("n1", false, 0);
    world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
    world.node("n1", false, 0);

    let removed = SweepAction {
        node_name: name("n1"),
        generation: 1,
        what: Swept::StaleNodeRemoved,
    };
    assert_eq!(swept(&world, 0).done, [removed]);
    assert_eq!(swept(&world, 0).done, []);
}

#[test]
fn a_record_without_a_status_after_a_move_can_renew() {
    let world = World::held(policy());
    let moved = World::new();
    for stored in &*block_on(world.records.all()).unwrap() {
        let record = Record {
            renewed_until: None,
            ..stored.record.clone()
        };
        block_on(moved.records.create(&record)).unwrap();
    }

    swept(&moved, 1);

    assert_eq!(moved.renews("m1", 1, 1).unwrap().uid.generation, 1);
}

#[test]
fn replaced_retired_and_manually_revoked_generations_are_revoked() {
    let world = World::held(policy());
    let revoked = |record: &Record, hour| {
        let revoked = record.revoked_generations(LONGEST, at(hour));
        revoked.map(|revoked| (revoked.lowest_valid, revoked.until))
    };
    assert_eq!(revoked(&world.record("n1"), 1), None);

    world.claims(&claim("m1", "n1", 2, 1), 1).unwrap();
    assert_eq!(
        revoked(&world.record("n1"), 1),
        Some((opened_at(1), at(21) + GRANT_LAG))
    );
    assert_eq!(revoked(&world.record("n1"), 22), None);
    world.revoke("n1", 2);
    let both = Some((opened_at(1) + 1, at(22) + GRANT_LAG));
    assert_eq!(revoked(&world.record("n1"), 2), both);
    assert_eq!(revoked(&world.record("n1"), 22), both);
    assert_eq!(revoked(&world.record("n1"), 23), None);

    let retired = world
        .record("n1")
        .retired(TombstoneReason::MachineGone, LONGEST, at(5));
    assert_eq!(
        revoked(&retired, 5),
        Some((opened_at(1) + 1, at(25) + GRANT_LAG))
    );
}

#[test]
fn a_certificate_from_a_stale_cache_expires_before_its_revocation() {
    let world = World::held(policy());
    let cached = World::held(policy());
    world.revoke("n1", 1);
    let late = at(1) + Duration::from_mins(2);
    let renewal = Renewal {
        identity: AttestedIdentity::vouched(Identity::of(provider_id("m1"))),
        uid: world.record("n1").certificate_uid(),
        asked: late,
        not_after: late + LONGEST,
        ..renewal("m1", 1, 0)
    };
    let granted = block_on(cached.ledger().renew(&renewal, renewal.asked)).unwrap();

    let revoked = world.record("n1").revoked_generations(LONGEST, late);
    assert!(granted.not_after <= revoked.unwrap().until);
}

#[test]
fn a_lower_lifetime_does_not_shorten_an_existing_revocation() {
    let world = World::held(policy());
    world.revoke("n1", 8);

    let hour = Duration::from_hours(1);
    let revoked = world.record("n1").revoked_generations(hour, at(8));

    // Within the last hour, the node could have got a certificate that is valid for ten hours, without a write to the
    // record.
    assert_eq!(revoked.unwrap().until, at(18) + GRANT_LAG);
}

#[test]
fn a_replaced_generation_never_becomes_valid_again() {
    let world = World::held(policy());
    let good = |generation: u64| {
        let revoked = world.record("n1").revoked_generations(LONGEST, at(1));
        revoked.is_none_or(|revoked| generation >= revoked.lowest_valid)
    };
    let mut former = vec![1];
    for key in 2..=41 {
        let newest = world.granted(&claim("m1", "n1", key, 1), 1);

        assert!(former.iter().all(|generation| *generation < newest));
        assert!(!former.iter().any(|generation| good(*generation)));
        assert!(good(newest));
        former.push(newest);
    }
    world.revoke("n1", 1);
    assert!(!former.iter().any(|generation| good(*generation)));
}

/// The record comes from a backup, and a machine claims the name again.
#[test]
fn a_generation_opened_after_a_restore_is_above_all_earlier_ones() {
    let world = World::held(policy());
    let backup = world.record("n1");
    let stolen = world.granted(&claim("m1", "n1", 2, 1), 1);
    world.revoke("n1", 2);
    let listed = world.record("n1").revoked_generations(LONGEST, at(2));

    let restored = World::new();
    block_on(restored.records.create(&backup)).unwrap();
    restored.reset("n1");
    let opened = restored.granted(&claim("m1", "n1", 3, 3), 3);

    assert!(opened > stolen);
    assert!(opened >= listed.unwrap().lowest_valid);
    let former = restored.record("n1").revoked_generations(LONGEST, at(3));
    assert!(former.unwrap().lowest_valid > stolen);
}

/// An inventory that is unavailable.
#[derive(Debug)]
struct Away;

#[async_trait::async_trait]
impl Inventory for Away {
    async fn by_provider_id(
        &self,
        _: &kubelet_attestation::names::ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        Err(Unavailable::new("away"))
    }

    async fn by_token(&self, _: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        Err(Unavailable::new("away"))
    }

    async fn by_address(&self, _: std::net::IpAddr) -> Result<Vec<Machine>, Unavailable> {
        Err(Unavailable::new("away"))
    }

    async fn by_name(&self, _: &str) -> Result<Vec<Machine>, Unavailable> {
        Err(Unavailable::new("away"))
    }
}

#[test]
fn an_inventory_outage_retires_no_record() {
    let world = World::held(policy());
    let records: Arc<MemoryRecords> = world.records.clone();
    let ledger = RecordLedger::new(
        records,
        Arc::new(Away),
        world.nodes.clone(),
        policy(),
        Enforcement::default(),
    );

    // If the inventory answers, two of these sweeps retire the record, as the next test shows.
    for hour in [1, 2, 3] {
        let swept = block_on(ledger.sweep_at(at(hour), &BTreeSet::new())).unwrap();

        assert_eq!((swept.live, swept.tombstones), (1, 0));
        assert!(world.record("n1").is_live());
    }
}

#[test]
fn a_sweep_retires_a_holder_that_is_missing_in_the_inventory() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    for hour in [1, 2] {
        block_on(world.ledger().sweep_at(at(hour), &BTreeSet::new())).unwrap();
    }

    assert!(!world.record("n1").is_live());
}

#[test]
fn a_sweep_keeps_a_record_while_its_machine_has_no_provider_id() {
    let mut world = World::held(policy());
    let mut machine = Machine::new("m1");
    world.machines = vec![machine.clone()];

    swept(&world, 1);
    assert!(world.record("n1").is_live(), "it joined by its token");

    machine.provider_id = Some(provider_id("m2"));
    world.machines = vec![machine];
    swept_again(&world, 2);
    assert!(!world.record("n1").is_live(), "it is another");
}

#[test]
fn a_stale_node_adopted_by_the_new_holder_is_kept() {
    let world = World::new();
    world.node("n1", false, 0);
    world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
    world.node("n1", true, 0);

    swept(&world, 0);

    assert!(node(&world).is_some());
}
