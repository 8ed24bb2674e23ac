//! Tests of the retirement of records whose machines are missing, and of the limit for one round.

use super::*;

#[test]
fn a_machine_counts_as_deleted_after_10_minutes_and_two_sweeps() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    let ledger = world.ledger();
    let is_held_after = |time| {
        block_on(ledger.sweep_at(time, &BTreeSet::new())).unwrap();
        world.record("n1").is_live()
    };
    let ten_minutes = Duration::from_mins(10);

    assert!(is_held_after(at(5)), "the first round, however late");
    assert!(is_held_after(at(5) + ten_minutes - Duration::from_secs(1)));
    assert!(!is_held_after(at(5) + ten_minutes));
}

#[test]
fn a_briefly_unlisted_pool_member_keeps_its_record() {
    let mut world = World::held(policy());
    world.edit("n1", |record| record.holder.machine_name = None);
    world.becomes("m1", None);
    swept(&world, 1);
    assert!(world.record("n1").is_live());

    swept_again(&world, 2);
    assert!(!world.record("n1").is_live());
}

#[test]
fn a_record_is_retired_when_its_provider_id_moves_to_another_machine() {
    let named = |name: &str| Machine {
        provider_id: Some(provider_id("m1")),
        ..Machine::new(name)
    };
    // The cases are a Machine, and a pool member without a Machine.
    for other in ["m2", provider_id("m1").as_str()] {
        let claimed = claim("m1", "n1", 1, 0);
        for claimed in [insecure(claimed.clone()), claimed] {
            let mut world = World::with(policy());
            world.claims(&claimed, 0).unwrap();
            world.machines = vec![named("m1"), Machine::new(other)];
            swept_again(&world, 1);
            assert!(world.record("n1").is_live(), "{other}");

            world.machines = vec![Machine::new("m1"), named(other)];
            swept_again(&world, 2);

            assert!(!world.record("n1").is_live(), "{other}");
        }
    }
}

#[test]
fn a_record_is_retired_once_its_machine_has_another_provider_id() {
    let claimed = claim("m1", "n1", 1, 0);
    for claimed in [insecure(claimed.clone()), claimed] {
        let mut world = World::with(policy());
        let unnamed = Machine {
            provider_id: None,
            ..machine("m1", MachineState::Ready)
        };
        world.machines = vec![unnamed];
        world.claims(&claimed, 0).unwrap();
        swept_again(&world, 1);
        assert!(world.record("n1").is_live());

        world.machines = vec![Machine {
            provider_id: Some(provider_id("m9")),
            ..machine("m1", MachineState::Ready)
        }];
        let swept = swept_again(&world, 2);

        assert!(!world.record("n1").is_live());
        let retired = SweepAction {
            node_name: name("n1"),
            generation: 1,
            what: Swept::Contradicted,
        };
        assert_eq!(swept.done, [retired]);
    }
}

#[test]
fn an_unattested_pool_member_keeps_its_record_when_it_gets_a_machine() {
    let mut world = World::with(policy());
    let member = provider_id("m1");
    let claimed = crate::ledger::Claim {
        machine_name: Some(member.as_str().to_owned()),
        ..insecure(claim("m1", "n1", 1, 0))
    };
    world.claims(&claimed, 0).unwrap();

    world.machines = vec![Machine {
        provider_id: Some(member),
        ..machine("pool-x7", MachineState::Ready)
    }];
    swept_again(&world, 1);

    assert!(world.record("n1").is_live());
}

#[test]
fn a_returning_machine_restarts_the_missing_timeout() {
    let mut world = World::held(policy());
    let minutes = |minutes| at(5) + Duration::from_mins(minutes);
    for (minute, state, is_held) in [
        (0, None, true),
        (5, Some(MachineState::Ready), true),
        (10, None, true),
        (19, None, true),
        (20, None, false),
    ] {
        world.becomes("m1", state);
        block_on(world.ledger().sweep_at(minutes(minute), &BTreeSet::new())).unwrap();
        assert_eq!(world.record("n1").is_live(), is_held, "{minute}");
    }
}

#[test]
fn the_missing_timeout_restarts_with_each_holder_of_a_name() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    swept(&world, 1);
    world.claims(&claim("m2", "n1", 2, 1), 1).unwrap();
    world.becomes("m2", None);

    swept(&world, 2);

    assert!(world.record("n1").is_live());
}

/// A world with this number of machines, each of which holds a name.
fn crowd(machines: usize) -> World {
    let mut world = World::new();
    world.machines.clear();
    for n in 0..machines {
        world.becomes(&format!("c{n}"), Some(MachineState::Ready));
    }
    for n in 0..machines {
        let mut claim = claim(&format!("c{n}"), &format!("c{n}"), 1, 0);
        claim.key = crate::identifiers::KeyDigest::of(&n.to_be_bytes());
        world.claims(&claim, 0).unwrap();
    }
    world
}

fn live(world: &World) -> usize {
    let all = block_on(world.records.all()).unwrap();
    all.iter().filter(|stored| stored.record.is_live()).count()
}

#[test]
fn a_sweep_retires_nothing_if_too_many_machines_are_missing() {
    for (machines, gone, retired) in [
        (5, 5, true),
        (6, 6, false),
        (29, 6, false),
        (30, 6, true),
        (31, 7, false),
    ] {
        let mut world = crowd(machines);
        for n in 0..gone {
            world.becomes(&format!("c{n}"), None);
        }
        let ledger = world.ledger();
        for minute in [0, 10, 20] {
            let swept =
                block_on(ledger.sweep_at(at(1) + Duration::from_mins(minute), &BTreeSet::new()))
                    .unwrap();
            let held_back = (minute >= 10 && !retired).then_some(gone);
            assert_eq!(swept.held_back, held_back, "{gone} of {machines}");
        }

        let expected = if retired { machines - gone } else { machines };
        assert_eq!(live(&world), expected, "{gone} of {machines}");
    }
}

#[test]
fn a_retirement_allowance_must_cover_every_missing_machine() {
    let mut world = crowd(8);
    for n in 0..8 {
        world.becomes(&format!("c{n}"), None);
    }
    assert_eq!(swept_again(&world, 1).held_back, Some(8));
    world.absences.allow(7);
    assert_eq!(swept(&world, 1).held_back, Some(8));
    assert_eq!(live(&world), 8);

    world.absences.allow(8);
    assert_eq!(swept(&world, 1).held_back, None);
    assert_eq!(live(&world), 0);
}

#[test]
fn a_wall_clock_jump_neither_retires_nor_keeps_a_record() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    let ledger = world.ledger();
    let minute = Duration::from_mins(1);

    block_on(ledger.sweep((at(1), at(1)), minute, &BTreeSet::new())).unwrap();
    block_on(ledger.sweep(
        (at(1) + 60 * minute, at(1) + 60 * minute),
        2 * minute,
        &BTreeSet::new(),
    ))
    .unwrap();
    assert!(world.record("n1").is_live());

    // A clock that is set back does not delay a retirement either.
    block_on(ledger.sweep((at(0), at(0)), 11 * minute, &BTreeSet::new())).unwrap();
    assert!(!world.record("n1").is_live());
}

#[test]
fn any_number_of_machines_seen_during_deletion_is_retired() {
    // The other machines are only missing. Because there are too many of them, the sweep does not retire them. However,
    // it retires the records of deleted machines.
    for (deleted, held_back) in [(8, None), (3, None), (2, Some(6))] {
        let mut world = crowd(8);
        for n in 0..deleted {
            world.becomes(&format!("c{n}"), Some(MachineState::Deleting));
        }
        block_on(world.ledger().sweep_at(at(0), &BTreeSet::new())).unwrap();
        for n in 0..8 {
            world.becomes(&format!("c{n}"), None);
        }

        let swept = swept_again(&world, 1);

        assert_eq!(swept.held_back, held_back, "{deleted}");
        assert_eq!(live(&world), held_back.unwrap_or(0), "{deleted}");
        for n in 0..deleted {
            assert!(!world.record(&format!("c{n}")).is_live(), "{n}");
        }
    }
}

#[test]
fn machines_seen_during_deletion_are_retired_after_an_inventory_outage() {
    let mut world = crowd(8);
    for n in 0..8 {
        world.becomes(&format!("c{n}"), Some(MachineState::Deleting));
    }
    block_on(world.ledger().sweep_at(at(0), &BTreeSet::new())).unwrap();
    let records: Arc<MemoryRecords> = world.records.clone();
    let (inventory, nodes) = (Arc::new(Away), world.nodes.clone());
    let away = RecordLedger::new(records, inventory, nodes, policy(), Enforcement::default());
    let away = away.with_absences(world.absences.clone());
    block_on(away.sweep_at(at(1), &BTreeSet::new())).unwrap();
    assert_eq!(live(&world), 8);
    for n in 0..8 {
        world.becomes(&format!("c{n}"), None);
    }

    let swept = swept_again(&world, 2);

    assert_eq!(swept.held_back, None);
    assert_eq!(live(&world), 0);
}

/// An inventory that has observed the deletion of these Machines.
#[derive(Debug)]
struct Watched {
    machines: StaticInventory,
    deleted: BTreeSet<String>,
}

#[async_trait::async_trait]
impl Inventory for Watched {
    async fn by_provider_id(
        &self,
        id: &kubelet_attestation::names::ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        self.machines.by_provider_id(id).await
    }

    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        self.machines.by_token(token).await
    }

    async fn by_address(&self, address: std::net::IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.machines.by_address(address).await
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        self.machines.by_name(name).await
    }

    async fn by_machine_name(&self, name: &str) -> Result<Option<Machine>, Unavailable> {
        self.machines.by_machine_name(name).await
    }

    fn was_deleted(&self, name: &str) -> bool {
        self.deleted.contains(name)
    }
}

#[test]
fn any_number_of_machines_deleted_between_two_sweeps_is_retired() {
    // The machines that were not deleted are missing in the inventory.
    for (deleted, held_back) in [(20, None), (15, None), (14, Some(6)), (0, Some(20))] {
        let world = crowd(20);
        let inventory = Watched {
            machines: StaticInventory::default(),
            deleted: (0..deleted).map(|n| format!("c{n}")).collect(),
        };
        let records: Arc<MemoryRecords> = world.records.clone();
        let ledger = RecordLedger::new(
            records,
            Arc::new(inventory),
            world.nodes.clone(),
            policy(),
            Enforcement::default(),
        );

        let sweep = |time| block_on(ledger.sweep_at(time, &BTreeSet::new())).unwrap();
        assert_eq!(sweep(at(1)).held_back, None);
        assert_eq!(live(&world), 20, "each waits for the timeout");
        let swept = sweep(at(1) + MISSING_MACHINE_TIMEOUT);

        assert_eq!(swept.held_back, held_back, "{deleted}");
        assert_eq!(live(&world), held_back.unwrap_or(0), "{deleted}");
        for n in 0..deleted {
            assert!(!world.record(&format!("c{n}")).is_live(), "{n}");
        }
    }
}

#[test]
fn a_machine_seen_again_after_its_deletion_counts_as_missing() {
    let mut world = crowd(8);
    for state in [MachineState::Deleting, MachineState::Ready] {
        for n in 0..8 {
            world.becomes(&format!("c{n}"), Some(state));
        }
        block_on(world.ledger().sweep_at(at(0), &BTreeSet::new())).unwrap();
    }
    for n in 0..8 {
        world.becomes(&format!("c{n}"), None);
    }

    assert_eq!(swept_again(&world, 1).held_back, Some(8));
}

#[test]
fn a_fast_clock_does_not_delete_a_tombstone_early() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    swept_again(&world, 2);
    let record = world.record("n1");
    let end = record.former_end().unwrap();
    let ahead = end + Duration::from_hours(24 * 7);

    let gc_action = |ended_by| gc_action(&record, HolderState::Gone, false, (ahead, ended_by));

    assert_eq!(gc_action(end), None);
    assert_eq!(gc_action(ahead), Some(GcAction::Delete));
}
