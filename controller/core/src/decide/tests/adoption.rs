//! Tests of existing nodes without evidence, which have only their kubelet certificate.

use std::sync::Arc;

use kubelet_attestation::names::NodeName;

use crate::decide::*;
use crate::identifiers::CertificateUid;
use crate::ledger::{Adoption, LedgerPolicy, RecordLedger};
use crate::scope::Enforcement;
use crate::testing::cluster::{Parts, node};
use crate::testing::nodes::MemoryNodes;
use crate::testing::{
    Csr, PROVIDER_ID_OID, UID, block, decided, der, extension, insecure, issued_at, now, renewal,
};

/// A cluster in which the Node `n1` is up.
pub(super) fn cluster(adoption: Adoption) -> Context {
    let nodes = MemoryNodes::default();
    nodes.put(NodeName::parse("n1").unwrap(), node("a", true, now()));
    let Parts {
        records, inventory, ..
    } = Parts::default();
    let context = Parts::default().cluster();
    let policy = LedgerPolicy {
        adoption,
        ..LedgerPolicy::new(context.longest_lifetime)
    };
    let ledger = RecordLedger::new(
        records,
        inventory,
        Arc::new(nodes),
        policy,
        Enforcement::default(),
    );
    Context {
        ledger: Arc::new(ledger),
        ..context
    }
}

/// A request from the Node `n1` with kubeadm's certificate. The request claims to be the machine with this provider ID.
pub(super) fn stock(provider_id: &str) -> CertificateSigningRequest {
    let mut csr = Csr::valid();
    let value = der::utf8(provider_id);
    csr.extensions = vec![extension(PROVIDER_ID_OID, false, &value)];
    let mut request = insecure();
    request.spec.request.0 = block("CERTIFICATE REQUEST", &csr.der()).into_bytes();
    let requester = renewal(UID).spec;
    request.spec.username = requester.username;
    request.spec.groups = requester.groups;
    request
}

#[track_caller]
pub(super) fn denied(request: &CertificateSigningRequest, cluster: &Context) -> &'static str {
    let decision = decided(request, cluster);
    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    denial.reason()
}

#[test]
fn an_existing_node_is_adopted_without_evidence_only_if_allowed() {
    let request = stock("metal:///rack/m1");
    let allowed = cluster(Adoption::AllowWithoutEvidence);

    let certificate = issued_at(&request, &allowed, now());
    assert_eq!(certificate.node_name.as_str(), "n1");
    assert_eq!(certificate.provider_id.as_str(), "metal:///rack/m1");
    assert_eq!(certificate.uid.generation, 1);

    for adoption in [Adoption::Refuse, Adoption::Allow] {
        assert_eq!(denied(&request, &cluster(adoption)), "RequesterUidMissing");
    }
}

#[test]
fn adoption_without_evidence_keeps_the_machine_and_the_node_name() {
    let allowed = cluster(Adoption::AllowWithoutEvidence);

    let another_machine = stock("metal:///rack/m2");
    assert_eq!(denied(&another_machine, &allowed), "NodeNameMismatch");
    let mut another_node = stock("metal:///rack/m1");
    another_node.spec.username = Some("system:node:n2".to_owned());
    assert_eq!(denied(&another_node, &allowed), "RequesterIsAnotherNode");
    let decision = decided(&stock("metal:///rack/m9"), &allowed);
    let Decision::Retry(Deferral::MachineNotFound) = decision else {
        panic!("not put off: {decision:?}");
    };
}

#[test]
fn a_lost_record_is_recovered_with_the_uid_of_the_requester() {
    let recovering = cluster(Adoption::Recover);
    let presented = CertificateUid::parse(UID).unwrap();

    let uid = issued_at(&renewal(UID), &recovering, now()).uid;

    assert_eq!(uid.record, presented.record);
    assert!(uid.generation > presented.generation, "{uid}");
    for uid in [None, Some(String::new()), Some("x.1".to_owned())] {
        let mut request = renewal(UID);
        request.spec.uid = uid;
        assert_eq!(denied(&request, &recovering), "RequesterUidMissing");
    }
}

#[test]
fn a_certificate_issued_without_evidence_cannot_be_renewed() {
    let allowed = cluster(Adoption::AllowWithoutEvidence);
    let request = stock("metal:///rack/m1");
    let uid = issued_at(&request, &allowed, now()).uid.to_string();

    let renewal = CertificateSigningRequest {
        spec: k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec {
            uid: Some(uid),
            ..request.spec
        },
        ..request
    };
    assert_eq!(denied(&renewal, &allowed), "UnattestedRenewal");
}
