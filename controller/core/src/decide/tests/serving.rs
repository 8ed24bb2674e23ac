//! Tests of serving certificates: the permitted requesters and formats.

use std::sync::Arc;

use futures::executor::block_on;
use kubelet_attestation::names::{NodeName, Provider};

use crate::decide::tests::not_present;
use crate::decide::*;
use crate::identifiers::CertificateUid;
use crate::inventory::{Machine, MachineState};
use crate::ledger::{MemoryRecords, Record, Records as _, Revoked};
use crate::request::ApprovalReason;
use crate::testing::cluster::Parts;
use crate::testing::serving::{
    dns, ip, joined, other_machine, serving, serving_cluster, serving_cluster_of, serving_csr,
    serving_for, serving_machine, serving_object,
};
use crate::testing::{
    Csr, EVIDENCE, PROVIDER_ID_OID, UID, condition, decided, der, evidence_block, extension,
    insecure, issued_at, now, provider_block, renewal, texts, valid,
};

fn n1() -> NodeName {
    NodeName::parse("n1").unwrap()
}

#[track_caller]
pub(super) fn approved(request: &CertificateSigningRequest, cluster: &Context) -> Approval {
    let decision = decided(request, cluster);
    let Decision::Approve(approval) = decision else {
        panic!("not approved: {decision:?}")
    };
    approval
}

#[track_caller]
pub(super) fn denied_by(request: &CertificateSigningRequest, cluster: &Context) -> Denial {
    let decision = decided(request, cluster);
    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    denial
}

#[track_caller]
pub(super) fn denied(request: &CertificateSigningRequest) -> Denial {
    denied_by(request, &serving_cluster())
}

pub(super) fn alone(change: impl FnOnce(&mut Machine)) -> Context {
    let mut machine = serving_machine();
    let cluster = joined(serving_cluster_of(vec![machine.clone()]));
    change(&mut machine);
    let inventory = serving_cluster_of(vec![machine]).inventory;
    Context {
        inventory,
        ..cluster
    }
}

#[test]
fn a_serving_certificate_for_the_nodes_name_and_address_is_approved() {
    let approval = approved(&serving(), &serving_cluster());

    assert_eq!(
        approval.approval_reason(),
        ApprovalReason::ServingNamesCorroborated
    );
    assert_eq!(approval.node_name(), &n1());
    assert_eq!(approval.provider_id().unwrap().as_str(), "metal:///rack/m1");
}

#[test]
fn a_serving_request_longer_than_the_policy_lifetime_is_denied() {
    const WEEK: i32 = 7 * 24 * 60 * 60;
    for (seconds, expected) in [
        // A kubelet does not request a specific lifetime.
        (None, None),
        (Some(WEEK), None),
        (Some(WEEK + 1), Some("ExpirationTooLong")),
        (Some(i32::MAX), Some("ExpirationTooLong")),
    ] {
        let mut request = serving();
        request.spec.expiration_seconds = seconds;
        match expected {
            None => drop(approved(&request, &serving_cluster())),
            Some(reason) => assert_eq!(denied(&request).reason(), reason),
        }
        // The name of this project's signer, which is truncated below.
        request.spec.signer_name = Provider::NULL.serving_signer();
        issued_at(&request, &serving_cluster(), now());
    }
}

#[test]
fn the_serving_signer_of_the_provider_issues_a_certificate() {
    let mut request = serving();
    request.spec.signer_name = Provider::NULL.serving_signer();

    let issued = issued_at(&request, &serving_cluster(), now());

    assert_eq!(
        issued.approval_reason,
        ApprovalReason::ServingNamesCorroborated
    );
    assert_eq!(issued.uid.to_string(), UID);
    assert_eq!(issued.not_after, now() + serving_cluster().longest_lifetime);
}

#[test]
fn an_insecure_node_gets_no_serving_approval() {
    let signer = Provider::INSECURE.serving_signer();
    let cluster = serving_cluster_of(vec![serving_machine()]);
    issued_at(&insecure(), &cluster, now());

    assert_eq!(
        denied_by(&serving(), &cluster),
        Denial::UnattestedServing(n1())
    );
    assert!(!cluster.signers().contains(&signer));
}

#[test]
fn a_username_that_is_not_the_name_of_a_node_is_denied() {
    for username in ["", "kubernetes-admin", "system:bootstrap:abcdef", "n1"] {
        let mut request = serving();
        request.spec.username = Some(username.to_owned());

        assert_eq!(
            denied(&request),
            Denial::RequesterNotAccepted(username.to_owned())
        );
    }
}

#[test]
fn a_serving_certificate_of_another_node_is_denied() {
    let mut request = serving();
    request.spec.username = Some("system:node:n2".to_owned());

    assert_eq!(
        denied(&request),
        Denial::RequesterIsAnotherNode {
            requester: NodeName::parse("n2").unwrap(),
            asked: n1(),
        }
    );
}

#[test]
fn unexpected_requester_groups_in_a_serving_request_are_denied() {
    for groups in [&["system:authenticated"][..], &["system:nodes"], &[]] {
        let mut request = serving();
        request.spec.groups = Some(texts(groups));

        let groups = texts(groups);
        assert_eq!(denied(&request), Denial::RequesterGroups(groups));
    }
}

#[test]
fn a_serving_request_with_other_usages_is_denied() {
    for usages in [
        &["digital signature"][..],
        &["server auth"],
        &["digital signature", "server auth", "client auth"],
        &["digital signature", "client auth"],
        &["digital signature", "server auth", "key encipherment"],
        &["digital signature", "digital signature"],
        &[],
    ] {
        let mut request = serving();
        request.spec.usages = Some(texts(usages));

        assert_eq!(denied(&request), Denial::ServingUsagesNotExact);
    }
    let mut request = serving();
    request.spec.usages = Some(texts(&["server auth", "digital signature"]));
    approved(&request, &serving_cluster());
}

#[test]
fn a_replaced_or_unrecorded_certificate_gets_no_serving_certificate() {
    let cluster = serving_cluster();
    let former = CertificateUid::parse(UID).unwrap();
    approved(&serving(), &cluster);
    let present = issued_at(&valid(), &cluster, now()).uid;
    let with = |uid: CertificateUid| {
        let mut request = serving();
        request.spec.uid = Some(uid.to_string());
        request
    };
    approved(&with(present), &cluster);

    for uid in not_present(former, present) {
        assert_eq!(
            denied_by(&with(uid), &cluster),
            Denial::FormerCertificate(n1(), uid)
        );
    }
    let nobody_joined = serving_cluster_of(vec![serving_machine()]);
    assert_eq!(
        denied_by(&serving(), &nobody_joined),
        Denial::RecordMissing(n1())
    );
}

#[test]
fn a_certificate_with_a_foreign_uid_gets_no_serving_certificate() {
    for uid in [None, Some(""), Some("8b0d0f3e-1b1f-4a6a-9b60-0d7f2f3a8f11")] {
        let mut request = serving();
        request.spec.uid = uid.map(str::to_owned);

        assert_eq!(denied(&request), Denial::RequesterUidMissing, "{uid:?}");
    }
}

#[test]
fn an_unexpected_organization_or_name_in_the_subject_is_denied() {
    let subject = |organization: &str, name: &str| {
        let parts = [
            ("2.5.4.10", der::utf8(organization)),
            ("2.5.4.3", der::utf8(name)),
        ];
        let csr = Csr {
            subject: Csr::with_subject(&parts).subject,
            ..serving_csr(&[dns("n1")])
        };
        denied(&serving_object(&csr))
    };

    assert_eq!(
        subject("system:masters", "system:node:n1"),
        Denial::SubjectOrganization
    );
    assert_eq!(subject("system:nodes", "n1"), Denial::SubjectCommonName);
}

#[test]
fn an_extension_other_than_the_alternative_names_is_denied() {
    let with = |oid: &str, critical: bool, value: &[u8]| {
        let mut csr = serving_csr(&[dns("n1")]);
        csr.extensions.push(extension(oid, critical, value));
        denied(&serving_object(&csr))
    };

    assert!(matches!(
        with(PROVIDER_ID_OID, false, &der::utf8("metal:///rack/m1")),
        Denial::UnknownExtension { .. }
    ));
    assert!(matches!(
        with("1.2.3.4", false, &der::null()),
        Denial::UnknownExtension { .. }
    ));
    assert!(matches!(
        with("1.2.3.4", true, &der::null()),
        Denial::CriticalExtension { .. }
    ));
    assert!(matches!(
        with("2.5.29.19", true, &der::sequence(&[der::boolean(true)])),
        Denial::BasicConstraintsRequested { ca: true }
    ));
    assert_eq!(
        with("2.5.29.37", false, &der::sequence(&[])),
        Denial::UsageExtensionRequested
    );
}

#[test]
fn attestation_blocks_in_a_serving_request_are_denied() {
    for blocks in [
        provider_block("null"),
        [provider_block("null"), evidence_block(EVIDENCE)].concat(),
    ] {
        let mut request = serving();
        request.spec.request.0.extend(blocks.into_bytes());

        assert_eq!(denied(&request), Denial::AttestationUnexpected);
    }
}

#[test]
fn a_client_request_to_a_serving_signer_is_denied() {
    let mut request = renewal(UID);
    request.spec.signer_name = serving().spec.signer_name;

    assert_eq!(denied(&request), Denial::ServingUsagesNotExact);
}

#[test]
fn a_machine_being_deleted_still_gets_serving_certificates() {
    let cluster = alone(|machine| machine.state = MachineState::Deleting);

    approved(&serving(), &cluster);
}

#[test]
fn a_serving_request_for_a_missing_machine_waits() {
    let cluster = Context {
        inventory: serving_cluster_of(vec![other_machine()]).inventory,
        ..serving_cluster()
    };

    let decision = decided(&serving(), &cluster);

    assert!(
        matches!(decision, Decision::Retry(Deferral::MachineNotFound)),
        "{decision:?}"
    );
}

#[test]
fn the_node_name_comes_from_the_record_not_from_the_inventory() {
    for name in [None, Some("prod-1-md-0-x7k2p")] {
        let name = name.map(|name| NodeName::parse(name).unwrap());
        let cluster = alone(|machine| machine.node_name = name.clone());

        let approval = approved(&serving(), &cluster);

        assert_eq!(approval.node_name(), &n1());
    }
}

#[test]
fn a_request_approved_by_this_controller_is_left_to_its_signer() {
    let mut request = serving();
    let mut ours = condition("Approved");
    ours.reason = Some(ApprovalReason::ServingNamesCorroborated.reason().to_owned());
    request.status.get_or_insert_default().conditions = Some(vec![ours]);

    let decision = decided(&request, &serving_cluster());

    assert!(
        matches!(decision, Decision::Ignore(Ignored::AlreadyApproved)),
        "{decision:?}"
    );
}

#[test]
fn a_request_approved_elsewhere_is_still_checked() {
    let mut request = serving_for(&[ip([192, 0, 2, 2])]);
    request.status.get_or_insert_default().conditions = Some(vec![condition("Approved")]);

    assert!(matches!(
        denied(&request),
        Denial::ServingNameNotReported { .. }
    ));
}

#[test]
fn each_serving_check_is_a_step_of_the_decision() {
    let decided = block_on(decide(&serving(), &serving_cluster(), now(), || {
        std::time::Duration::ZERO
    }));
    let steps: Vec<_> = decided.steps.iter().map(|step| step.check).collect();

    assert_eq!(
        steps,
        [
            "scope",
            "encoding",
            "request-format",
            "serving-names",
            "signature"
        ]
    );
}

#[test]
fn a_revoked_node_gets_no_serving_certificate() {
    let records: Arc<MemoryRecords> = Arc::default();
    let Context { ledger, .. } = Parts {
        records: records.clone(),
        ..Parts::default()
    }
    .cluster();
    let cluster = Context {
        ledger,
        ..serving_cluster_of(vec![serving_machine()])
    };
    let cluster = joined(cluster);
    approved(&serving(), &cluster);

    let stored = block_on(records.read(&n1())).unwrap().unwrap();
    let revoked = Record {
        revoked: Some(Revoked {
            generation: 1,
            at: now(),
        }),
        ..stored.record
    };
    block_on(records.replace(&revoked, &stored.version)).unwrap();

    assert_eq!(
        denied_by(&serving(), &cluster),
        Denial::IdentityRevoked(n1(), 1)
    );
}
