//! Tests of claims to node names that have a holder, and of claims from machines that hold a name.

use std::sync::Arc;

use kubelet_attestation::names::{NodeName, ProviderId};

use crate::decide::*;
use crate::inventory::StaticInventory;
use crate::ledger::{MemoryRecords, Records};
use crate::refusal::Denial;
use crate::testing::cluster::{Parts, machine, node};
use crate::testing::faulty_records::{Fault, FaultyRecords};
use crate::testing::nodes::MemoryNodes;
use crate::testing::{
    UID, cluster, cluster_of_nodes, decided, insecure, issued_at, now, of_m2, renewal, valid,
};

fn n1() -> NodeName {
    NodeName::parse("n1").unwrap()
}

#[test]
fn a_machine_with_a_new_key_waits_while_its_node_is_up() {
    for request in [valid, insecure] {
        let nodes = Arc::new(MemoryNodes::default());
        let cluster = cluster_of_nodes(nodes.clone());
        issued_at(&request(), &cluster, now());
        nodes.put(n1(), node("a", true, now()));

        let decision = decided(&request(), &cluster);

        let Decision::Retry(Deferral::IdentityLive(node_name, _)) = decision else {
            panic!("not retried: {decision:?}")
        };
        assert_eq!(node_name, n1());
    }
}

#[test]
fn a_name_that_another_machine_holds_is_denied() {
    let before = cluster();
    issued_at(&valid(), &before, now());
    let machines = vec![machine("m2", "n1", Some("ghijkl"))];
    let after = Context {
        inventory: Arc::new(StaticInventory::new(machines).unwrap()),
        ..before
    };

    let decision = decided(&of_m2("n1"), &after);

    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    assert_eq!(
        denial,
        Denial::NameTaken(n1(), ProviderId::parse("metal:///rack/m1").unwrap())
    );
}

/// A cluster in which the machine of this request joined as `n1`. The inventory now contains a different name for the
/// machine.
#[track_caller]
fn renamed_after(join: &CertificateSigningRequest) -> Context {
    let records: Arc<MemoryRecords> = Arc::default();
    let called = |name: &str| {
        let machines = vec![machine("m1", name, Some("abcdef"))];
        let parts = Parts {
            records: records.clone(),
            inventory: Arc::new(StaticInventory::new(machines).unwrap()),
            ..Parts::default()
        };
        parts.cluster()
    };
    issued_at(join, &called("n1"), now());
    called("n9")
}

#[test]
fn a_joined_machine_keeps_its_recorded_name_after_an_inventory_change() {
    let cluster = renamed_after(&valid());

    for request in [renewal(UID), valid()] {
        assert_eq!(issued_at(&request, &cluster, now()).node_name, n1());
    }
}

#[test]
fn a_recorded_name_is_read_before_a_request_for_it_is_denied() {
    let records: Arc<MemoryRecords> = Arc::default();
    let called = |name: &str, records: Arc<dyn Records>| {
        let machines = vec![machine("m1", name, Some("abcdef"))];
        let parts = Parts {
            records,
            inventory: Arc::new(StaticInventory::new(machines).unwrap()),
            ..Parts::default()
        };
        parts.cluster()
    };
    issued_at(&valid(), &called("n1", records.clone()), now());

    let outdated = FaultyRecords(records, Fault::FormerHolder);
    let cluster = called("n9", Arc::new(outdated));

    for request in [renewal(UID), valid()] {
        assert_eq!(issued_at(&request, &cluster, now()).node_name, n1());
    }
}

#[test]
fn a_machine_without_record_or_evidence_must_use_the_reported_name() {
    let machines = vec![machine("m1", "n9", Some("abcdef"))];
    let unrecorded = Context {
        inventory: Arc::new(StaticInventory::new(machines).unwrap()),
        ..cluster()
    };
    for (request, cluster) in [
        (valid(), unrecorded),
        (insecure(), renamed_after(&insecure())),
        (valid(), renamed_after(&insecure())),
    ] {
        let Decision::Deny(denial) = decided(&request, &cluster) else {
            panic!("not denied");
        };
        assert_eq!(denial.reason(), "NodeNameMismatch");
    }
}

/// An operator has changed the names of the platform's machines.
#[test]
fn a_joined_machine_keeps_its_recorded_name_after_a_platform_change() {
    let records: Arc<MemoryRecords> = Arc::default();
    let told = |name: &str| {
        let mut parts = Parts {
            records: records.clone(),
            ..Parts::default()
        };
        parts.witness.node_name = Some(NodeName::parse(name).unwrap());
        parts.cluster()
    };
    let denied = |decision| {
        let Decision::Deny(denial) = decision else {
            panic!("not denied: {decision:?}");
        };
        denial.reason()
    };
    assert_eq!(denied(decided(&valid(), &told("n9"))), "NodeNameMismatch");

    issued_at(&valid(), &told("n1"), now());

    for request in [renewal(UID), valid()] {
        assert_eq!(issued_at(&request, &told("n9"), now()).node_name, n1());
    }
    assert_eq!(
        denied(decided(&of_m2("n1"), &told("n9"))),
        "NodeNameMismatch"
    );
}
