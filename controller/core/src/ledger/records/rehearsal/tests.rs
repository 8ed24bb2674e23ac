use std::sync::Arc;

use futures::executor::block_on;
use kubelet_attestation::names::NodeName;

use super::*;
use crate::testing::faulty_records::{Fault, FaultyRecords};
use crate::testing::{cluster, decided, valid};

/// The records of a cluster that `n1` has joined.
fn joined() -> Arc<dyn Records> {
    let cluster = cluster();
    drop(decided(&valid(), &cluster));
    cluster.ledger.records().clone()
}

fn n1() -> NodeName {
    NodeName::parse("n1").unwrap()
}

#[test]
fn a_dry_run_replaces_records_only_in_memory() {
    let actual = joined();
    let before = block_on(actual.read(&n1())).unwrap().unwrap();
    let rehearsal = Rehearsal::over(actual.clone());
    let next = Record {
        generation: 2,
        ..before.record.clone()
    };

    let written = block_on(rehearsal.replace(&next, &before.version)).unwrap();

    assert_eq!(
        block_on(rehearsal.read(&n1())).unwrap(),
        Some(written.clone())
    );
    assert_eq!(
        block_on(rehearsal.known(&n1())).unwrap(),
        Some(written.clone())
    );
    assert_eq!(block_on(actual.read(&n1())).unwrap(), Some(before.clone()));
    let stale = block_on(rehearsal.replace(&next, &before.version));
    assert!(matches!(stale, Err(WriteError::Conflict)), "{stale:?}");
    let third = Record {
        generation: 3,
        ..next
    };
    let again = block_on(rehearsal.replace(&third, &written.version)).unwrap();
    assert_eq!(again.record.generation, 3);
    assert!(block_on(rehearsal.caught_up(&n1(), &again.version)).is_ok());
}

#[test]
fn a_dry_run_does_not_create_an_existing_record() {
    let actual = joined();
    let record = block_on(actual.read(&n1())).unwrap().unwrap().record;
    let rehearsal = Rehearsal::over(actual);

    let created = block_on(rehearsal.create(&record));

    assert!(matches!(created, Err(WriteError::Exists)), "{created:?}");
    let other = Record {
        node_name: NodeName::parse("n2").unwrap(),
        ..record
    };
    block_on(rehearsal.create(&other)).unwrap();
    let twice = block_on(rehearsal.create(&other));
    assert!(matches!(twice, Err(WriteError::Exists)), "{twice:?}");
}

#[test]
fn a_dry_run_finds_both_stored_records_and_records_in_memory() {
    let actual = joined();
    let before = block_on(actual.read(&n1())).unwrap().unwrap();
    let holder = before.record.holder.assurance();
    let rehearsal = Rehearsal::over(actual.clone());
    let known = || {
        let known = rehearsal.known_of_machine(holder.identity(), before.record.opened.key);
        let mut known = block_on(known).unwrap();
        known.sort_by(|one, other| one.record.node_name.cmp(&other.record.node_name));
        known
    };
    assert_eq!(known(), std::slice::from_ref(&before));

    let other = Record {
        node_name: NodeName::parse("n2").unwrap(),
        ..before.record.clone()
    };
    let other = block_on(rehearsal.create(&other)).unwrap();
    assert_eq!(known(), [before.clone(), other.clone()]);

    let next = Record {
        generation: 2,
        ..before.record.clone()
    };
    let next = block_on(rehearsal.replace(&next, &before.version)).unwrap();
    assert_eq!(known(), [next, other]);
    assert_eq!(*block_on(rehearsal.all()).unwrap(), [Arc::new(before)]);
}

#[test]
fn a_dry_run_does_not_delete_records() {
    let actual = joined();
    let before = block_on(actual.read(&n1())).unwrap().unwrap();
    let rehearsal = Rehearsal::over(actual);

    let deleted = block_on(rehearsal.delete(&n1(), &before.version));

    assert!(matches!(deleted, Err(WriteError::Conflict)), "{deleted:?}");
    assert_eq!(block_on(rehearsal.read(&n1())).unwrap(), Some(before));
}

#[test]
fn a_dry_run_waits_for_the_versions_of_the_stored_records() {
    let actual = FaultyRecords(Arc::default(), Fault::NeverCaughtUp);
    let rehearsal = Rehearsal::over(Arc::new(actual));
    let version = |text: &str| Version::new(text);

    let error = block_on(rehearsal.caught_up(&n1(), &version("1"))).unwrap_err();
    assert_eq!(error.to_string(), "behind");
    assert!(block_on(rehearsal.caught_up(&n1(), &version("rehearsed-1"))).is_ok());
}
