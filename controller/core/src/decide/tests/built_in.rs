//! Tests of requests to kube-controller-manager's client signer.

use std::sync::Arc;

use futures::executor::block_on;
use kubelet_attestation::names::{
    BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, CSR_NAME_PREFIX, NodeName, Provider,
    ProviderId,
};

use crate::crd::ExemptNodes;
use crate::decide::*;
use crate::inventory::{Machine, MachineState, StaticInventory};
use crate::ledger::{GrantReason, MemoryRecords, Records as _, Stored, Tombstone, TombstoneReason};
use crate::request::ApprovalReason;
use crate::scope::{Enforcement, EnforcementState};
use crate::testing::cluster::{Parts, machine};
use crate::testing::faulty_records::{Fault, FaultyRecords};
use crate::testing::serving::{serving as serving_request, serving_cluster};
use crate::testing::{
    Csr, UID, block, cluster, condition, decided, envelope, issued_at, now, object, provider_block,
    renewal, valid,
};

/// The entry of `exemptNodes` for control-plane nodes.
const PLANES: &str = ExemptNodes::CONTROL_PLANE;

/// The cluster with these entries in `exemptNodes`.
fn exempting(entries: &[&str]) -> Context {
    Context {
        exempt_nodes: entries.iter().collect(),
        ..cluster()
    }
}

/// A request from a stock kubelet with a bootstrap token.
fn stock() -> CertificateSigningRequest {
    let csr = Csr {
        extensions: Vec::new(),
        attributes: Some(Vec::new()),
        ..Csr::valid()
    };
    let mut object = object(block("CERTIFICATE REQUEST", &csr.der()));
    object.spec.signer_name = BUILT_IN_CLIENT_SIGNER.to_owned();
    object
}

/// A request from a stock kubelet with the certificate from kubeadm.
pub(super) fn stock_renewal() -> CertificateSigningRequest {
    let stock = stock();
    let mut object = renewal("");
    object.spec.request = stock.spec.request;
    object.spec.signer_name = stock.spec.signer_name;
    object.spec.uid = None;
    object
}

fn with_evidence() -> CertificateSigningRequest {
    let mut object = valid();
    object.spec.signer_name = BUILT_IN_CLIENT_SIGNER.to_owned();
    object
}

#[track_caller]
fn denied(request: &CertificateSigningRequest, cluster: &Context) -> Denial {
    let decision = decided(request, cluster);
    let Decision::Deny(denial) = decision else {
        panic!("not denied: {decision:?}")
    };
    denial
}

#[track_caller]
fn unattested(request: &CertificateSigningRequest, cluster: &Context) -> &'static str {
    let denial = denied(request, cluster);
    let Denial::UnattestedBuiltInRequest(detail) = denial else {
        panic!("denied otherwise: {denial:?}")
    };
    detail
}

const NOT_EXEMPT: &str = "exemptNodes contains neither the node nor ControlPlane";

const NO_CONTROL_PLANE: &str =
    "the node is not exempt, and does not belong to a control-plane machine";

#[test]
fn a_cluster_watches_its_signers_and_the_built_in_signers() {
    assert_eq!(
        cluster().signers(),
        [
            Provider::INSECURE.client_signer(),
            Provider::NULL.client_signer(),
            Provider::NULL.serving_signer(),
            BUILT_IN_CLIENT_SIGNER.to_owned(),
            "kubernetes.io/kubelet-serving".to_owned(),
        ]
    );
}

#[test]
fn a_built_in_request_without_evidence_is_denied() {
    let cluster = cluster();
    for request in [stock(), stock_renewal()] {
        assert_eq!(
            unattested(&request, &cluster),
            "the cluster has no exempt Nodes (exemptNodes)"
        );
    }
    let mut provider_only = stock();
    let blocks = provider_block("null").into_bytes();
    provider_only.spec.request.0.extend(blocks);
    unattested(&provider_only, &cluster);
}

#[test]
fn built_in_requests_are_ignored_while_attestation_is_not_enforced() {
    for entries in [&[PLANES][..], &[]] {
        let cluster = exempting(entries);
        let unreadable = |mut request: CertificateSigningRequest| {
            request.spec.request = k8s_openapi::ByteString(b"x".to_vec());
            request
        };
        let mut issued = stock();
        let status = issued.status.get_or_insert_default();
        status.certificate = Some(k8s_openapi::ByteString(b"x".to_vec()));
        let mut serving = stock_renewal();
        serving.spec.signer_name = BUILT_IN_SERVING_SIGNER.to_owned();
        let requests = [
            stock(),
            stock_renewal(),
            unreadable(stock()),
            issued,
            serving,
        ];
        for request in requests {
            let is_as_before = |cluster: &Context| {
                let decision = decided(&request, cluster);
                matches!(decision, Decision::Ignore(Ignored::NotEnforced))
            };
            assert!(!is_as_before(&cluster), "{request:?}");
            cluster.enforcement.set(false);
            assert!(is_as_before(&cluster), "{request:?}");
            cluster.enforcement.set(true);
        }
    }
}

#[test]
fn a_built_in_request_waits_until_the_enforcement_is_known() {
    let mut issued = stock();
    let status = issued.status.get_or_insert_default();
    status.conditions = Some(vec![condition("Approved")]);
    status.certificate = Some(k8s_openapi::ByteString(b"x".to_vec()));
    let mut serving = stock_renewal();
    serving.spec.signer_name = BUILT_IN_SERVING_SIGNER.to_owned();
    for entries in [&[PLANES][..], &[]] {
        for request in [stock(), stock_renewal(), issued.clone(), serving.clone()] {
            let cluster = Context {
                enforcement: Enforcement::new(EnforcementState::Unknown),
                ..exempting(entries)
            };
            let decision = decided(&request, &cluster);
            let waits = matches!(decision, Decision::Retry(Deferral::EnforcementUnknown));
            assert!(waits, "{decision:?}");

            cluster.enforcement.set(false);
            assert_as_before(&request, &cluster);
        }
    }
    let cluster = Context {
        enforcement: Enforcement::new(EnforcementState::Unknown),
        ..cluster()
    };
    let mut denied = stock();
    let status = denied.status.get_or_insert_default();
    status.conditions = Some(vec![condition("Denied")]);
    let decision = decided(&denied, &cluster);
    let is_done = matches!(decision, Decision::Ignore(Ignored::AlreadyDenied));
    assert!(is_done, "{decision:?}");
    // The exemption does not affect a request from a node with the plugin.
    assert!(matches!(decided(&valid(), &cluster), Decision::Issue(_)));
}

fn off(cluster: Context) -> Context {
    cluster.enforcement.set(false);
    cluster
}

#[track_caller]
fn assert_as_before(request: &CertificateSigningRequest, cluster: &Context) {
    let decision = decided(request, cluster);
    assert!(
        matches!(decision, Decision::Ignore(Ignored::NotEnforced)),
        "{decision:?}"
    );
}

#[test]
fn control_plane_renewal_works_while_attestation_is_not_enforced() {
    let control_plane = off(with_control_plane(|_| {}));
    let decision = decided(&stock_renewal(), &control_plane);
    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");

    let worker = off(with_control_plane(|machine| machine.control_plane = false));
    assert_as_before(&stock_renewal(), &worker);
}

#[test]
fn attested_requests_are_decided_while_attestation_is_not_enforced() {
    let named = |mut request: CertificateSigningRequest| {
        request.metadata.name = Some(format!("{CSR_NAME_PREFIX}x"));
        request
    };

    let denial = denied(&named(with_evidence()), &off(cluster()));
    assert!(
        matches!(denial, Denial::BuiltInSignerNotUsed(_)),
        "{denial:?}"
    );
    unattested(&named(stock()), &off(cluster()));
    let decision = decided(&valid(), &off(cluster()));
    assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
    let decision = decided(&serving_request(), &off(serving_cluster()));
    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
}

#[test]
fn a_built_in_request_approved_elsewhere_is_still_denied() {
    let mut request = stock();
    request.status.get_or_insert_default().conditions = Some(vec![condition("Approved")]);

    unattested(&request, &cluster());
}

#[test]
fn a_built_in_certificate_approved_elsewhere_is_reported() {
    let mut request = stock();
    let status = request.status.get_or_insert_default();
    status.conditions = Some(vec![condition("Approved")]);
    status.certificate = Some(k8s_openapi::ByteString(b"x".to_vec()));

    let decision = decided(&request, &cluster());

    assert!(
        matches!(decision, Decision::Ignore(Ignored::IssuedByOthers)),
        "{decision:?}"
    );
}

#[test]
fn evidence_for_the_built_in_signer_is_denied() {
    for entries in [&[PLANES][..], &[]] {
        assert_eq!(
            denied(&with_evidence(), &exempting(entries)),
            Denial::BuiltInSignerNotUsed(Provider::NULL.client_signer())
        );
    }
}

/// The cluster in which the Node is exempt and this machine holds the name `n1`.
fn with_control_plane(change: impl FnOnce(&mut Machine)) -> Context {
    let mut machine = machine("m1", "n1", Some("abcdef"));
    machine.control_plane = true;
    change(&mut machine);
    let mut cluster = exempting(&[PLANES]);
    cluster.inventory = Arc::new(StaticInventory::new(vec![machine]).unwrap());
    cluster
}

#[test]
fn a_control_plane_machine_can_renew_its_kubeadm_certificate() {
    let decision = decided(&stock_renewal(), &with_control_plane(|_| {}));

    let Decision::Approve(approval) = decision else {
        panic!("not approved: {decision:?}")
    };
    assert_eq!(
        approval.approval_reason(),
        ApprovalReason::ControlPlaneRenewal
    );
    assert_eq!(approval.grant_reason(), Some(&GrantReason::Renewed));
    assert_eq!(approval.node_name().as_str(), "n1");
}

#[test]
fn a_control_plane_node_is_identified_only_by_its_node_reference() {
    let named = |node: &str| {
        with_control_plane(|machine| {
            machine.node_name = Some(NodeName::parse("prod-1-cp-x7k2p").unwrap());
            machine.dns_names = vec!["n1".to_owned()];
            machine.node = Some(NodeName::parse(node).unwrap());
        })
    };

    let decision = decided(&stock_renewal(), &named("n1"));
    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");

    assert_eq!(unattested(&stock_renewal(), &named("n2")), NO_CONTROL_PLANE);
}

#[test]
fn the_exception_applies_only_to_control_plane_machines() {
    let worker = with_control_plane(|machine| machine.control_plane = false);
    let another = with_control_plane(|machine| {
        machine.node_name = Some(NodeName::parse("n2").unwrap());
        machine.dns_names = vec!["n1".to_owned()];
    });
    assert_eq!(unattested(&stock_renewal(), &worker), NO_CONTROL_PLANE);
    assert_eq!(unattested(&stock_renewal(), &another), NO_CONTROL_PLANE);

    let going = with_control_plane(|machine| machine.state = MachineState::Deleting);
    assert!(matches!(
        decided(&stock_renewal(), &going),
        Decision::Approve(_)
    ));
}

#[test]
fn a_node_name_of_two_machines_gets_no_control_plane_exception() {
    let mut first = machine("m1", "n1", None);
    let mut second = machine("m2", "n2", None);
    second.node = Some(NodeName::parse("n1").unwrap());
    second.dns_names = vec!["n1".to_owned()];
    (first.control_plane, second.control_plane) = (true, true);
    let mut cluster = exempting(&[PLANES]);
    cluster.inventory = Arc::new(StaticInventory::new(vec![first, second]).unwrap());

    assert_eq!(unattested(&stock_renewal(), &cluster), NO_CONTROL_PLANE);
}

#[test]
fn a_control_plane_renewal_waits_while_the_node_name_cannot_be_read() {
    let unread = |node_name| {
        with_control_plane(|machine| {
            machine.state = MachineState::Unread;
            machine.node_name = node_name;
            machine.dns_names = vec!["n1".to_owned()];
        })
    };
    let own = NodeName::parse("n1").unwrap();

    let unknown = decided(&stock_renewal(), &unread(None));
    let waits = matches!(unknown, Decision::Retry(Deferral::InventoryUnavailable(_)));
    assert!(waits, "{unknown:?}");
    let known = decided(&stock_renewal(), &unread(Some(own)));
    assert!(matches!(known, Decision::Approve(_)), "{known:?}");
}

#[test]
fn the_control_plane_exception_requires_an_exact_kubeadm_request() {
    let cluster = || with_control_plane(|_| {});
    assert!(matches!(
        denied(&stock(), &cluster()),
        Denial::RequesterNotAccepted { .. }
    ));
    let mut another = stock_renewal();
    another.spec.username = Some("system:node:n2".to_owned());
    assert!(matches!(
        denied(&another, &cluster()),
        Denial::RequesterIsAnotherNode { .. }
    ));
    let mut usages = stock_renewal();
    usages.spec.usages.get_or_insert_default().pop();
    assert_eq!(denied(&usages, &cluster()), Denial::UsagesNotExact);
    let mut extensions = stock_renewal();
    extensions.spec.request.0 = block("CERTIFICATE REQUEST", &Csr::valid().der()).into_bytes();
    assert!(matches!(
        denied(&extensions, &cluster()),
        Denial::UnknownExtension { .. }
    ));
    let mut marked = stock_renewal();
    marked.spec.uid = Some(UID.to_owned());
    assert_eq!(
        unattested(&marked, &cluster()),
        "the requester's certificate is not from kubeadm"
    );
}

#[test]
fn a_control_plane_node_with_a_record_renews_with_evidence() {
    let cluster = with_control_plane(|_| {});
    issued_at(&object(envelope(&Csr::valid().der())), &cluster, now());

    assert_eq!(
        unattested(&stock_renewal(), &cluster),
        "the node has a node identity, and must renew with evidence"
    );
}

#[test]
fn a_control_plane_node_with_a_retired_record_renews_despite_the_cache() {
    let records: Arc<MemoryRecords> = Arc::default();
    let parts = Parts {
        records: Arc::new(FaultyRecords(records.clone(), Fault::Unretired)),
        ..Parts::default()
    };
    let cluster = Context {
        ledger: parts.cluster().ledger,
        ..with_control_plane(|_| {})
    };
    issued_at(&object(envelope(&Csr::valid().der())), &cluster, now());
    let n1 = NodeName::parse("n1").unwrap();
    let Stored {
        mut record,
        version,
    } = block_on(records.read(&n1)).unwrap().unwrap();
    record.tombstone = Some(Tombstone {
        since: now(),
        reason: TombstoneReason::MachineGone,
        until: now(),
    });
    block_on(records.replace(&record, &version)).unwrap();

    let decision = decided(&stock_renewal(), &cluster);

    assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
}

#[test]
fn an_exempt_node_renews_with_or_without_a_machine() {
    let without_machine = Context {
        inventory: Arc::new(StaticInventory::new(Vec::new()).unwrap()),
        ..exempting(&["n1"])
    };
    for (cluster, machine) in [
        (exempting(&["n1"]), Some("metal:///rack/m1")),
        (without_machine, None),
    ] {
        for is_enforced in [true, false] {
            cluster.enforcement.set(is_enforced);
            let decision = decided(&stock_renewal(), &cluster);

            let Decision::Approve(approval) = decision else {
                panic!("not approved: {decision:?}")
            };
            assert_eq!(approval.approval_reason(), ApprovalReason::ExemptRenewal);
            assert_eq!(approval.node_name().as_str(), "n1");
            let found = approval.provider_id().map(ProviderId::as_str);
            assert_eq!(found, machine);
        }
    }
}

#[test]
fn an_exempt_node_gets_neither_another_name_nor_a_certificate_by_token() {
    assert_eq!(
        unattested(&stock_renewal(), &exempting(&["n2"])),
        NOT_EXEMPT
    );
    let mut another = stock_renewal();
    another.spec.username = Some("system:node:n2".to_owned());
    for exempt in ["n1", "n2"] {
        assert!(matches!(
            denied(&another, &exempting(&[exempt])),
            Denial::RequesterIsAnotherNode { .. }
        ));
    }
    assert!(matches!(
        denied(&stock(), &exempting(&["n1"])),
        Denial::RequesterNotAccepted { .. }
    ));
}

#[test]
fn an_exempt_list_does_not_permit_control_plane_renewal() {
    let mut cluster = with_control_plane(|_| {});
    cluster.exempt_nodes = ["n2"].iter().collect();

    assert_eq!(unattested(&stock_renewal(), &cluster), NOT_EXEMPT);
}

#[test]
fn an_exempt_node_with_a_record_renews_with_evidence() {
    let cluster = exempting(&["n1"]);
    issued_at(&object(envelope(&Csr::valid().der())), &cluster, now());

    assert_eq!(
        unattested(&stock_renewal(), &cluster),
        "the node has a node identity, and must renew with evidence"
    );
}

#[test]
fn a_listed_worker_renews_while_control_planes_are_exempt() {
    let mut cluster = with_control_plane(|machine| machine.control_plane = false);
    assert_eq!(unattested(&stock_renewal(), &cluster), NO_CONTROL_PLANE);

    cluster.exempt_nodes = [PLANES, "n1"].iter().collect();

    let decision = decided(&stock_renewal(), &cluster);
    let Decision::Approve(approval) = decision else {
        panic!("not approved: {decision:?}")
    };
    assert_eq!(approval.approval_reason(), ApprovalReason::ExemptRenewal);
}
