//! Tests of the valid requests, and of the order of the steps.

mod adoption;
mod attacks;
mod built_in;
mod exempt_revoked;
mod explained;
mod first_use;
mod foreseen;
mod names;
mod serving;
mod serving_names;
mod serving_ranges;
mod serving_reported;
mod unready;

use std::time::Duration;

use futures::executor::block_on;

use super::*;
use crate::crd::ExemptNodes;
use crate::decide::tests::built_in::stock_renewal;
use crate::identifiers::{CertificateUid, RecordUid};
use crate::inventory::Machine;
use crate::ledger::{GrantReason, Record};
use crate::testing::cluster::WEEK;
use crate::testing::serving::{joined, serving, serving_cluster_of, serving_machine};
use crate::testing::{UID, cluster, decided, insecure, now, renewal, valid};

fn issued(decision: Decision) -> IssuedCertificate {
    let decision = decision;
    let Decision::Issue(certificate) = decision else {
        panic!("not issued: {decision:?}")
    };
    certificate
}

/// UIDs that differ from the current UID in the record: one of an earlier generation, one of a later generation, and
/// the UID of another record.
fn not_present(former: CertificateUid, present: CertificateUid) -> [CertificateUid; 3] {
    assert_eq!(former.record, present.record);
    assert!(former.generation < present.generation);
    [
        former,
        CertificateUid {
            generation: present.generation + 1,
            ..present
        },
        CertificateUid {
            record: RecordUid::new([9; 16]),
            ..present
        },
    ]
}

#[test]
fn a_joining_machine_gets_a_certificate() {
    let certificate = issued(decided(&valid(), &cluster()));

    assert_eq!(certificate.node_name.as_str(), "n1");
    assert_eq!(certificate.provider_id.as_str(), "metal:///rack/m1");
    assert_eq!(certificate.uid.to_string(), UID);
    assert_eq!(certificate.grant_reason, Some(GrantReason::First));
    assert_eq!(certificate.not_after, now() + WEEK);
}

#[test]
fn a_record_contains_the_machine_and_the_request_that_created_it() {
    let (mut request, cluster) = (valid(), cluster());
    request.metadata.name = Some("csr-1".to_owned());
    request.metadata.uid = Some("uid-1".to_owned());
    issued(decided(&request, &cluster));

    let records = block_on(cluster.ledger.records().all()).unwrap();

    let Record { opened, holder, .. } = &records[0].record;
    let request = &opened.request;
    assert_eq!((&*request.name, &*request.uid), ("csr-1", "uid-1"));
    assert_eq!(holder.machine_name.as_deref(), Some("m1"));
}

#[test]
fn a_decision_contains_the_machine_object() {
    let object = ObjectReference {
        name: Some("m1".to_owned()),
        ..ObjectReference::default()
    };
    let of = |mut machine: Machine| {
        machine.object = Some(object.clone());
        machine.control_plane = true;
        vec![machine]
    };
    let cluster = || Context {
        exempt_nodes: [ExemptNodes::CONTROL_PLANE].into_iter().collect(),
        ..serving_cluster_of(of(serving_machine()))
    };
    for (request, cluster) in [
        (renewal(UID), joined(cluster())),
        (serving(), joined(cluster())),
        (stock_renewal(), cluster()),
    ] {
        let decided = block_on(decide(&request, &cluster, now(), || Duration::ZERO));
        let granted = matches!(decided.decision, Decision::Issue(_) | Decision::Approve(_));
        assert!(granted, "{:?}", decided.decision);
        assert_eq!(decided.machine.as_ref(), Some(&object));
    }
}

#[test]
fn a_machine_without_evidence_gets_a_certificate_with_its_token() {
    let certificate = issued(decided(&insecure(), &cluster()));

    assert_eq!(certificate.node_name.as_str(), "n1");
    assert_eq!(certificate.not_after, now() + WEEK);
}

#[test]
fn a_node_renews_with_another_key() {
    let cluster = cluster();
    let first = issued(decided(&valid(), &cluster));

    let second = issued(decided(&renewal(UID), &cluster));

    assert_eq!(second.uid, first.uid);
    assert_ne!(second.serial, first.serial);
}

#[test]
fn a_repeated_request_gets_the_same_decision() {
    let (cluster, request) = (cluster(), valid());
    let first = issued(decided(&request, &cluster));

    let again = issued(decided(&request, &cluster));

    assert_eq!(again.uid, first.uid);
}

#[test]
fn each_check_is_a_step_and_the_last_step_decides() {
    let cluster = cluster();
    let checks = |request: &CertificateSigningRequest| -> Vec<_> {
        let decided = block_on(decide(request, &cluster, now(), || Duration::ZERO));
        decided.steps.iter().map(|step| step.check).collect()
    };

    let all = [
        "scope",
        "encoding",
        "request-format",
        "machine",
        "evidence",
        "node-name",
        "claim",
        "signature",
    ];
    assert_eq!(checks(&valid()), all);
    let mut other = valid();
    other.spec.username = Some("system:bootstrap:ghijkl".to_owned());
    assert_eq!(checks(&other), all[..4]);
}
