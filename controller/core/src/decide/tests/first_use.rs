//! Tests of trust on first use: one test for each row in table E of the attacks.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::{NodeName, ProviderId};

use crate::decide::*;
use crate::identifiers::TokenId;
use crate::inventory::{Machine, MachineState, StaticInventory};
use crate::ledger::{LedgerPolicy, MemoryRecords, RecordLedger, Records};
use crate::nodes::Nodes;
use crate::scope::Enforcement;
use crate::testing::cluster::{Parts, machine, node};
use crate::testing::nodes::MemoryNodes;
use crate::testing::{
    UID, cluster, cluster_of_nodes, decided, decided_at, insecure, issued_at, now, of_m2, renewal,
    valid,
};
use crate::verifier::{InsecureVerifier, Verifier, Verifiers};

fn n1() -> NodeName {
    NodeName::parse("n1").unwrap()
}

/// Returns the reason why the request waits.
#[track_caller]
fn waits(decision: Decision) -> &'static str {
    let Decision::Retry(deferral) = decision else {
        panic!("not put off: {decision:?}")
    };
    deferral.reason()
}

#[track_caller]
fn denied(decision: Decision) -> &'static str {
    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    denial.reason()
}

fn with_machines(machines: Vec<Machine>) -> Parts {
    Parts {
        inventory: Arc::new(StaticInventory::new(machines).unwrap()),
        ..Parts::default()
    }
}

#[test]
fn a_first_claim_waits_while_a_ready_node_has_the_name() {
    let nodes = Arc::new(MemoryNodes::default());
    let cluster = cluster_of_nodes(nodes.clone());
    nodes.put(n1(), node("a", true, now()));
    assert_eq!(waits(decided(&valid(), &cluster)), "NodeAlive");

    nodes.remove(&n1());
    issued_at(&valid(), &cluster, now());
}

#[test]
fn a_name_held_by_another_machine_is_denied_whatever_its_node_status() {
    let records: Arc<MemoryRecords> = Arc::default();
    let first = Parts {
        records: records.clone(),
        ..Parts::default()
    };
    issued_at(&valid(), &first.cluster(), now());
    let machines = vec![
        machine("m1", "n9", Some("abcdef")),
        machine("m2", "n1", Some("ghijkl")),
    ];
    for up in [true, false] {
        let nodes = MemoryNodes::default();
        nodes.put(n1(), node("a", up, now() - Duration::from_hours(1)));
        let parts = Parts {
            records: records.clone(),
            nodes: Arc::new(nodes),
            ..with_machines(machines.clone())
        };

        assert_eq!(denied(decided(&of_m2("n1"), &parts.cluster())), "NameTaken");
    }
}

#[test]
fn a_machine_must_exist_and_be_ready_and_must_not_be_deleted() {
    let with = |state| Machine {
        state,
        ..machine("m1", "n1", Some("abcdef"))
    };
    let decided = |machines| decided(&valid(), &with_machines(machines).cluster());

    assert_eq!(waits(decided(vec![])), "MachineNotFound");
    assert_eq!(
        waits(decided(vec![with(MachineState::Pending)])),
        "MachineNotReady"
    );
    assert_eq!(
        denied(decided(vec![with(MachineState::Deleting)])),
        "MachineDeleting"
    );
    assert!(matches!(
        decided(vec![with(MachineState::Ready)]),
        Decision::Issue(_)
    ));
}

#[test]
fn a_new_key_for_the_same_machine_waits_until_its_node_is_down() {
    let nodes = Arc::new(MemoryNodes::default());
    let cluster = cluster_of_nodes(nodes.clone());
    issued_at(&valid(), &cluster, now());
    nodes.put(n1(), node("a", true, now()));
    assert_eq!(waits(decided(&valid(), &cluster)), "IdentityLive");

    nodes.put(n1(), node("a", false, now() - Duration::from_mins(2)));
    assert!(issued_at(&valid(), &cluster, now()).uid.generation > 1);
}

#[test]
fn a_machine_can_request_a_certificate_at_any_age() {
    let year = Duration::from_hours(365 * 24);
    for time in [now() - year, now(), now() + year] {
        let issuance = cluster();
        assert!(matches!(
            decided_at(&valid(), &issuance, time),
            Decision::Issue(_)
        ));
    }
}

#[test]
fn a_node_that_renews_under_another_nodes_uid_is_denied() {
    let cluster = cluster_with_different_uids();
    let own = issued_at(&valid(), &cluster, now());
    let other = issued_at(&of_m2("n2"), &cluster, now());
    assert_ne!(own.uid.record, other.uid.record);
    issued_at(&renewal(&own.uid.to_string()), &cluster, now());

    assert_eq!(
        denied(decided(&renewal(&other.uid.to_string()), &cluster)),
        "FormerCertificate"
    );
    let mut another = renewal(&other.uid.to_string());
    another.spec.username = Some("system:node:n2".to_owned());
    assert_eq!(
        denied(decided(&another, &cluster)),
        "RequesterIsAnotherNode"
    );
}

/// The cluster, with a ledger whose new records can be distinguished.
fn cluster_with_different_uids() -> Context {
    let Parts {
        inventory,
        nodes,
        records,
        ..
    } = Parts::default();
    let cluster = cluster();
    let policy = LedgerPolicy::new(cluster.longest_lifetime);
    let ledger = RecordLedger::new(records, inventory, nodes, policy, Enforcement::default());
    Context {
        ledger: Arc::new(ledger),
        ..cluster
    }
}

#[test]
fn a_repeated_request_keeps_its_record() {
    let (cluster, request) = (cluster(), valid());
    let first = issued_at(&request, &cluster, now());

    assert_eq!(issued_at(&request, &cluster, now()).uid, first.uid);
}

#[test]
fn a_name_is_granted_again_after_the_machine_and_node_are_deleted() {
    let records: Arc<MemoryRecords> = Arc::default();
    let first = Parts {
        records: records.clone(),
        ..Parts::default()
    };
    issued_at(&valid(), &first.cluster(), now());
    let nodes = Arc::new(MemoryNodes::default());
    let down = node("former", false, now() - Duration::from_mins(2));
    nodes.put(n1(), down);
    let after = |others: Vec<Machine>| {
        let machines = [vec![machine("m2", "n1", Some("ghijkl"))], others].concat();
        let parts = Parts {
            records: records.clone(),
            nodes: nodes.clone(),
            ..with_machines(machines)
        };
        parts.cluster()
    };
    let leaving = Machine {
        state: MachineState::Deleting,
        node_name: None,
        ..machine("m1", "n1", None)
    };
    assert_eq!(
        waits(decided(&of_m2("n1"), &after(vec![leaving]))),
        "HolderLeaving"
    );

    let certificate = issued_at(&of_m2("n1"), &after(vec![]), now());

    assert!(certificate.uid.generation > 1);
    let record = futures::executor::block_on(records.read(&n1()))
        .unwrap()
        .unwrap()
        .record;
    assert_eq!(
        record.holder.provider_id,
        ProviderId::parse("metal:///rack/m2").unwrap()
    );
    let node = futures::executor::block_on(nodes.state(&n1())).unwrap();
    assert_eq!(node, None);
}

#[test]
fn annotations_from_the_requester_are_ignored() {
    let annotations = [
        ("attestation.cluster.x-k8s.io/supported-versions", "v0"),
        ("attestation.cluster.x-k8s.io/approved-by", "admin"),
        ("attestation.cluster.x-k8s.io/reset", "1"),
        ("cluster.x-k8s.io/tpm-endorsement-key", "x"),
    ];
    let spoofed = |mut request: CertificateSigningRequest| {
        let annotations = annotations.map(|(name, value)| (name.to_owned(), value.to_owned()));
        request.metadata.annotations = Some(annotations.into());
        request
    };
    let nodes = Arc::new(MemoryNodes::default());
    let cluster = cluster_of_nodes(nodes.clone());

    assert_eq!(
        denied(decided(&spoofed(renewal(UID)), &cluster)),
        "RecordMissing"
    );
    issued_at(&spoofed(valid()), &cluster, now());
    nodes.put(n1(), node("a", true, now()));
    assert_eq!(waits(decided(&spoofed(valid()), &cluster)), "IdentityLive");
}

#[test]
fn a_request_for_an_unauthorized_attestor_is_ignored() {
    let none: Arc<dyn Verifier> = Arc::new(InsecureVerifier);
    let cluster = Context {
        verifiers: Verifiers::from_iter([none]),
        ..cluster()
    };
    assert!(matches!(decided(&insecure(), &cluster), Decision::Issue(_)));

    assert!(matches!(
        decided(&valid(), &cluster),
        Decision::Ignore(Ignored::AnotherSigner { .. })
    ));
}

#[test]
fn a_machine_that_is_being_deleted_can_renew() {
    let records: Arc<MemoryRecords> = Arc::default();
    let with = |state| {
        let machine = Machine {
            state,
            ..machine("m1", "n1", Some("abcdef"))
        };
        let parts = Parts {
            records: records.clone(),
            ..with_machines(vec![machine])
        };
        parts.cluster()
    };
    issued_at(&valid(), &with(MachineState::Ready), now());

    issued_at(&renewal(UID), &with(MachineState::Deleting), now());
}

/// Returns the request with a token that does not belong to any machine.
fn by_nobodys(mut request: CertificateSigningRequest) -> CertificateSigningRequest {
    request.spec.username = Some("system:bootstrap:nobody".to_owned());
    request
}

#[test]
fn an_unowned_token_with_evidence_joins_a_machine_without_a_token() {
    let of = |own| with_machines(vec![machine("m1", "n1", own)]).cluster();

    issued_at(&by_nobodys(valid()), &of(None), now());
    assert_eq!(
        denied(decided(&by_nobodys(valid()), &of(Some("abcdef")))),
        "TokenOfAnotherMachine"
    );
}

#[test]
fn an_unowned_token_without_evidence_joins_only_its_assigned_machine() {
    let nobody = TokenId::parse("nobody").unwrap();
    for own in [None, Some("abcdef")] {
        let mut machines = vec![machine("m1", "n1", own), machine("m2", "n2", None)];
        let cluster = |machines: &[Machine]| with_machines(machines.to_vec()).cluster();
        let request = by_nobodys(insecure());
        assert_eq!(
            waits(decided(&request, &cluster(&machines))),
            "MachineNotFound"
        );

        machines[1].assigned_token = Some(nobody.clone());
        assert_eq!(
            denied(decided(&request, &cluster(&machines))),
            "ProviderIdOfAnotherMachine"
        );

        machines[1].assigned_token = None;
        machines[0].assigned_token = Some(nobody.clone());
        issued_at(&request, &cluster(&machines), now());
    }
}
