//! Tests that an explanation makes the same checks as a decision, lists the input of each check, and does not write
//! anything.

use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::decide::{Context, Decided, Decision, decide, explain};
use crate::ledger::{LedgerPolicy, MemoryRecords, RecordLedger, Records, Rehearsal};
use crate::nodes::ReadOnlyNodes;
use crate::testing::nodes::MemoryNodes;
use crate::testing::{UID, cluster, decided, now, of_m2, renewal, valid};

/// The cluster with these records, to which the test must not write.
fn rehearsed(records: &Arc<dyn Records>) -> Context {
    let cluster = cluster();
    let ledger = RecordLedger::new(
        Arc::new(Rehearsal::over(records.clone())),
        cluster.inventory.clone(),
        Arc::new(ReadOnlyNodes(MemoryNodes::default())),
        LedgerPolicy::new(cluster.longest_lifetime),
        cluster.enforcement.clone(),
    );
    Context {
        ledger: Arc::new(ledger),
        ..cluster
    }
}

fn explained(request: &CertificateSigningRequest, records: &Arc<dyn Records>) -> Decided {
    block_on(explain(request, &rehearsed(records), now(), || {
        Duration::ZERO
    }))
}

fn seen(decided: &Decided) -> Vec<(&'static str, Option<&str>)> {
    let steps = decided.steps.iter();
    steps
        .map(|step| (step.check, step.saw.as_deref()))
        .collect()
}

#[test]
fn an_explained_decision_lists_every_check_without_writing_a_record() {
    let records: Arc<dyn Records> = Arc::new(MemoryRecords::default());

    let decided = explained(&valid(), &records);

    let signer = "cluster.x-k8s.io/kube-apiserver-client-kubelet-null";
    let expected = [
        (
            "scope",
            format!("a request from system:bootstrap:abcdef to {signer}"),
        ),
        (
            "encoding",
            "a request signed with its own key, with null evidence".to_owned(),
        ),
        (
            "request-format",
            "node n1 on machine metal:///rack/m1, with bootstrap token abcdef, for 168h".to_owned(),
        ),
        ("machine", "machine m1 can join; its Node is n1".to_owned()),
        (
            "evidence",
            "the evidence identifies metal:///rack/m1".to_owned(),
        ),
        (
            "node-name",
            "machine m1 is allowed to use node name n1".to_owned(),
        ),
        ("claim", "generation 1: first join".to_owned()),
        (
            "signature",
            "a certificate until 2027-01-22T08:00:00Z".to_owned(),
        ),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(check, saw)| (*check, Some(&**saw)))
        .collect();
    assert_eq!(seen(&decided), expected);
    assert!(matches!(decided.decision, Decision::Issue(_)));
    assert!(block_on(records.all()).unwrap().is_empty());
}

#[test]
fn a_failing_check_records_no_observation() {
    let records: Arc<dyn Records> = Arc::new(MemoryRecords::default());
    let mut request = valid();
    request.spec.username = Some("system:bootstrap:ghijkl".to_owned());

    let decided = explained(&request, &records);

    let Decision::Deny(denial) = &decided.decision else {
        panic!("{:?}", decided.decision);
    };
    assert_eq!(denial.reason(), "TokenOfAnotherMachine");
    let checks = seen(&decided);
    assert_eq!(checks.len(), 4, "{checks:?}");
    assert_eq!(checks[3], ("machine", None));
}

#[test]
fn an_explanation_does_not_write_a_record() {
    let cluster = cluster();
    let Decision::Issue(first) = decided(&valid(), &cluster) else {
        panic!("not issued");
    };
    let records = cluster.ledger.records().clone();
    let before = block_on(records.all()).unwrap();

    let renewed = explained(&renewal(UID), &records);
    let taken = explained(&of_m2("n1"), &records);

    let Decision::Issue(second) = &renewed.decision else {
        panic!("{:?}", renewed.decision);
    };
    assert_eq!(second.uid, first.uid);
    assert!(!matches!(taken.decision, Decision::Issue(_)));
    assert_eq!(block_on(records.all()).unwrap(), before);
}

#[test]
fn a_decision_without_explanation_keeps_no_observations() {
    let cluster = cluster();

    let decided = block_on(decide(&valid(), &cluster, now(), || Duration::ZERO));

    assert_eq!(decided.steps.len(), 8);
    assert!(decided.steps.iter().all(|step| step.saw.is_none()));
}
