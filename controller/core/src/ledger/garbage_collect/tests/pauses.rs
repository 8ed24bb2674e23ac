//! Tests of the pauses in a sweep of many records.

use super::*;
use crate::identifiers::RecordUid;
use crate::ledger::{Adoption, LedgerPolicy};
use crate::pace::PAGE;
use crate::testing::pauses;

const PAGES: usize = 4;

/// A cluster with several pages of records whose machines no longer exist.
fn many() -> World {
    many_with(policy())
}

/// The cluster from [`many`], with this policy.
fn many_with(policy: LedgerPolicy) -> World {
    let world = World::with(policy);
    for number in 0..PAGES * PAGE {
        let claim = claim(&format!("x{number}"), &format!("n{number}"), 1, 0);
        let mut uid = [0; 16];
        uid[..8].copy_from_slice(&number.to_be_bytes());
        let record = Record::first(&claim, RecordUid::new(uid), None, at(0));
        block_on(world.records.create(&record)).unwrap();
    }
    world
}

#[test]
fn other_tasks_run_after_each_page_of_a_sweep() {
    let world = many();
    let ledger = world.ledger();

    let (swept, count) = pauses(ledger.sweep_at(at(1), &BTreeSet::new()));

    assert_eq!(swept.unwrap().live, PAGES * PAGE);
    // The sweep pauses during the lookup of machines, the update of absences, and the actions.
    assert_eq!(count, 3 * PAGES);
    let (swept, count) = pauses(ledger.sweep_at(at(2), &BTreeSet::new()));
    assert_eq!(swept.unwrap().held_back, Some(PAGES * PAGE));
    // The sweep also pauses during the comparison with previously missing machines.
    assert_eq!(count, 4 * PAGES);
}

#[test]
fn certificates_without_a_record_are_dropped_in_pages() {
    let world = World::held(policy());
    let ledger = world.ledger();
    let issued = LastIssued {
        generation: 1,
        serial: "1".to_owned(),
        not_after: at(9),
        time: at(0),
        elapsed: Duration::ZERO,
        boot: None,
    };
    for number in 1..=PAGES * PAGE {
        ledger.issued(&name(&format!("n{number}")), issued.clone());
    }

    let (swept, count) = pauses(ledger.sweep_at(at(1), &BTreeSet::new()));

    assert_eq!(swept.unwrap().live, 1);
    assert_eq!(count, PAGES);
    let kept: Vec<_> = ledger.issued.lock().keys().cloned().collect();
    assert_eq!(kept, [name("n1")]);
}

#[test]
fn a_recovery_among_many_records_does_not_walk_over_them() {
    for adoption in [Adoption::Recover, Adoption::Refuse] {
        let world = many_with(LedgerPolicy {
            adoption,
            ..policy()
        });
        let lost = Renewal {
            node_name: name("lost"),
            ..renewal("m1", 1, 1)
        };

        let (recovered, count) = pauses(world.ledger().renew(&lost, at(1)));

        assert_eq!(
            recovered.is_ok(),
            adoption == Adoption::Recover,
            "{recovered:?}"
        );
        assert_eq!(count, 0, "pauses between pages of records");
    }
}
