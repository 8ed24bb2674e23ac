//! Tests of attacks on the requester's identity.

use kubelet_attestation::names::NodeName;

use crate::decide::Decision;
use crate::decide::tests::not_present;
use crate::refusal::Denial;
use crate::testing::{UID, cluster, decided, denied, issued_at, now, renewal, texts, valid};

#[test]
fn a_user_that_is_not_a_token_or_a_node_is_denied() {
    for username in [
        "",
        "kubernetes-admin",
        "system:masters",
        "system:anonymous",
        "system:serviceaccount:kube-system:default",
        "system:bootstrap:",
        "system:bootstrap:abcde",
        "system:bootstrap:abcdefg",
        "system:bootstrap:ABCDEF",
        "system:bootstrap:abc/ef",
        "system:bootstrappers:abcdef",
        "system:node:",
        "system:node:N1",
        "System:Node:n1",
    ] {
        let mut request = valid();
        request.spec.username = Some(username.to_owned());

        assert_eq!(
            denied(&request),
            Denial::RequesterNotAccepted(username.to_owned())
        );
    }
}

#[test]
fn a_missing_user_is_denied() {
    let mut request = valid();
    request.spec.username = None;

    assert_eq!(
        denied(&request),
        Denial::RequesterNotAccepted(String::new())
    );
}

#[test]
fn unexpected_groups_of_a_bootstrap_token_are_denied() {
    for groups in [
        &[][..],
        &["system:authenticated"],
        &["system:bootstrappers:kubeadm:default-node-token"],
        &["system:bootstrappers", "system:masters"],
        &["system:bootstrappers", "system:nodes"],
        &["system:bootstrappers", "system:bootstrappersx"],
        &["system:bootstrappers", "system:bootstrappers:"],
        &["system:bootstrappers", "system:unauthenticated"],
    ] {
        let mut request = valid();
        request.spec.groups = Some(texts(groups));

        let groups = texts(groups);
        assert_eq!(denied(&request), Denial::RequesterGroups(groups));
    }
}

#[test]
fn unexpected_groups_of_a_node_are_denied() {
    for groups in [
        &[][..],
        &["system:nodes"],
        &["system:authenticated"],
        &["system:nodes", "system:authenticated", "system:masters"],
        &[
            "system:nodes",
            "system:authenticated",
            "system:bootstrappers",
        ],
    ] {
        let mut request = renewal(UID);
        request.spec.groups = Some(texts(groups));

        let groups = texts(groups);
        assert_eq!(denied(&request), Denial::RequesterGroups(groups));
    }
}

#[test]
fn a_node_that_requests_another_nodes_certificate_is_denied() {
    let mut request = renewal(UID);
    request.spec.username = Some("system:node:n2".to_owned());

    assert_eq!(
        denied(&request),
        Denial::RequesterIsAnotherNode {
            requester: NodeName::parse("n2").unwrap(),
            asked: NodeName::parse("n1").unwrap(),
        }
    );
}

#[test]
fn a_node_without_a_valid_certificate_uid_is_denied() {
    for uid in [
        "",
        "8b0d0f3e-1b1f-4a6a-9b60-0d7f2f3a8f11",
        UID.trim_end_matches(".1"),
        "x.1",
    ] {
        assert_eq!(
            denied(&renewal(uid)),
            Denial::RequesterUidMissing,
            "{uid:?}"
        );
    }
    let mut request = renewal(UID);
    request.spec.uid = None;
    assert_eq!(denied(&request), Denial::RequesterUidMissing);
}

#[test]
fn a_renewal_without_a_record_is_denied() {
    let node_name = NodeName::parse("n1").unwrap();

    assert_eq!(denied(&renewal(UID)), Denial::RecordMissing(node_name));
}

#[test]
fn a_renewal_with_a_replaced_certificate_is_denied() {
    let cluster = cluster();
    let former = issued_at(&valid(), &cluster, now()).uid;
    let present = issued_at(&valid(), &cluster, now()).uid;
    let renewed = decided(&renewal(&present.to_string()), &cluster);
    assert!(matches!(renewed, Decision::Issue(_)), "{renewed:?}");

    for uid in not_present(former, present) {
        let decision = decided(&renewal(&uid.to_string()), &cluster);
        let Decision::Deny(denial) = decision else {
            panic!("not denied: {decision:?}")
        };
        let node_name = NodeName::parse("n1").unwrap();
        assert_eq!(denial, Denial::FormerCertificate(node_name, uid));
    }
}
