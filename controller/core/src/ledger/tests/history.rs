//! Tests with random histories of one cluster, with backups of either side and lost records, which check the invariants
//! after each event. Certificates recover their records.
//!
//! | invariant | |
//! | --- | --- |
//! | one key for each UID | all certificates of one UID have the same key |
//! | a revoked certificate is refused | the list contains its UID; its holder cannot renew it or get a serving
//! certificate |
//! | a revoked key cannot open a generation | no claim with this key is granted until its certificates have expired |
//! | a revoked machine waits for the operator | no claim from this machine is granted before `reset --revoked` or the
//! expiry |
//! | a recovery affects no other machine | a lost record gets a new key, and a revoked machine cannot recover a
//! record |

mod life;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use life::{Event, Flaw, Life};

/// A runner that creates the same histories in each run.
fn runner(cases: u32) -> TestRunner {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn history() -> impl Strategy<Value = Vec<Event>> {
    let index = || any::<prop::sample::Index>();
    let event = prop_oneof![
        4 => (0..2_usize, 0..2_usize).prop_map(|(machine, name)| Event::Join { machine, name }),
        2 => (0..2_usize, 0..2_usize, index())
            .prop_map(|(machine, name, key)| Event::JoinWithKey { machine, name, key }),
        2 => index().prop_map(Event::Renew),
        3 => (0..2_usize).prop_map(Event::Revoke),
        2 => (0..2_usize).prop_map(Event::Reset),
        1 => (0..2_usize).prop_map(Event::ResetRevoked),
        1 => (0..2_usize).prop_map(Event::Retire),
        1 => (0..2_usize).prop_map(Event::Forget),
        1 => Just(Event::ForgetAll),
        2 => Just(Event::Backup),
        2 => Just(Event::RestoreManagement),
        2 => any::<bool>().prop_map(|restarted| Event::RestoreWorkload { restarted }),
        1 => Just(Event::Restart),
        1 => Just(Event::RestoreBoth),
        1 => Just(Event::Move),
        1 => Just(Event::RaiseFloor),
        3 => Just(Event::Hour),
    ];
    prop::collection::vec(event, 0..40)
}

/// The shortest history that violates an invariant, and that invariant.
fn violation(cases: u32, flaw: Option<Flaw>) -> Option<String> {
    let run = |history: Vec<Event>| {
        let mut life = Life::new(flaw);
        for event in history {
            life.take(&event).map_err(TestCaseError::fail)?;
        }
        Ok(())
    };
    match runner(cases).run(&history(), run) {
        Ok(()) => None,
        Err(TestError::Fail(reason, history)) => Some(format!("{reason}: {history:?}")),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn every_generated_history_satisfies_the_invariants() {
    let violation = violation(2000, None);

    assert!(violation.is_none(), "{}", violation.unwrap_or_default());
}

#[test]
fn each_missing_rule_breaks_an_invariant_in_some_history() {
    for (flaw, expected) in [
        (Flaw::GenerationIsNext, "two keys"),
        (Flaw::ListOfRecordsOnly, "revoked"),
        (Flaw::ResetBeforeRevocation, "revoked machine"),
        (Flaw::NoFloorAfterRestore, "revoked certificate"),
        (Flaw::MachinesForgotten, "revoked machine"),
        (Flaw::ReleaseForgetsKey, "revoked key"),
        (Flaw::RecoveryIgnoresList, "revoked"),
    ] {
        let found = violation(2000, Some(flaw));
        let found = found.unwrap_or_else(|| panic!("{flaw:?} breaks nothing"));
        assert!(found.contains(expected), "{flaw:?}: {found}");
    }
}

/// The first invariant that a history violates.
fn broken(flaw: Option<Flaw>, history: &[Event]) -> Option<String> {
    let mut life = Life::new(flaw);
    history.iter().find_map(|event| life.take(event).err())
}

#[test]
fn a_revocation_after_the_backup_still_applies_after_each_restore() {
    let workload = |restarted| Event::RestoreWorkload { restarted };
    for (forgotten, restore, flaw) in [
        // The records contain the revocation.
        (false, workload(true), None),
        // The list in the controller's memory contains the revocation.
        (true, workload(false), Some(Flaw::ListOfRecordsOnly)),
        // The revocation is lost in both clusters and in memory, so an operator raises the floor.
        (true, workload(true), Some(Flaw::NoFloorAfterRestore)),
        // The list in the workload cluster contains the revocation.
        (
            false,
            Event::RestoreManagement,
            Some(Flaw::ListOfRecordsOnly),
        ),
        (false, Event::RestoreBoth, Some(Flaw::NoFloorAfterRestore)),
    ] {
        let join = Event::Join {
            machine: 0,
            name: 0,
        };
        let mut history = vec![join, Event::Backup, Event::Revoke(0)];
        history.extend(forgotten.then_some(Event::Forget(0)));
        history.extend([restore, Event::Hour]);

        assert_eq!(broken(None, &history), None, "{history:?}");
        if flaw.is_some() {
            let broken = broken(flaw, &history).unwrap();
            assert!(broken.contains("revoked certificate"), "{broken}: {flaw:?}");
        }
    }
}
