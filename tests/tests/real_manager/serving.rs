//! Tests of serving certificates for the addresses that Cluster API reports.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::BUILT_IN_SERVING_SIGNER;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use crate::SITE;

/// A request for a serving certificate for this address.
pub fn request(name: &str, node_name: &str, address: [u8; 4]) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{node_name}"));
    params.subject_alt_names = vec![SanType::IpAddress(address.into())];
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": BUILT_IN_SERVING_SIGNER,
            "usages": SERVING_USAGES,
            "request": BASE64_STANDARD.encode(request.replace("\r\n", "\n")),
            "expirationSeconds": 3600,
        },
    })
}

/// Joins as the pool member `member`, whose Node reports these addresses. Returns kubectl with the member's
/// certificate.
fn member(scene: &Scene, addresses: &[&str]) -> Kubectl {
    let id = "generic:///pool/member";
    let pool = scene.cluster.pool("pool-a").provider_ids(&[id]).create();
    let application = scene.stamped("member", id);
    let credential = scene.join_by(&pool.bootstrap_kubeconfig(), &application);
    let kubectl = scene.cluster.control_plane().kubectl_with(credential);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "member"}});
    kubectl.create_object(&node);
    let addresses = addresses.iter();
    let addresses = addresses.map(|address| json!({"type": "InternalIP", "address": address}));
    let addresses: Vec<_> = addresses.collect();
    let status = ["node", "member", "--subresource=status"];
    kubectl.patch(&status, &json!({"status": {"addresses": addresses}}));
    kubectl
}

#[test]
fn a_pool_member_serves_at_its_reported_address_if_allowed() {
    let scene = Scene::start(&SITE, "serving-pool", json!({}));
    let kubectl = member(&scene, &["203.0.113.7"]);

    kubectl.create_object(&request("refused", "member", [203, 0, 113, 7]));

    scene.assert_denied("refused", "ServingNameNotReported");

    scene.change(&json!({
        "guestReportedAddresses": "Allow",
        "servingAddressRanges": ["203.0.113.0/24"],
    }));
    let mut asked = 0;
    let issued = poll(SWEPT, || {
        asked += 1;
        let name = format!("allowed-{asked}");
        kubectl.create_object(&request(&name, "member", [203, 0, 113, 7]));
        Some(scene.answer(&name)).filter(is_issued)
    });
    assert!(issued.is_some(), "{asked} requests are denied");
    // A request for an address that the member does not report does not get a certificate.
    kubectl.create_object(&request("another", "member", [203, 0, 113, 8]));
    scene.assert_denied("another", "ServingNameNotReported");
}

#[test]
fn a_pool_member_serves_only_at_addresses_in_configured_ranges() {
    const OUT_OF_RANGE: &str = "ServingAddressOutOfRange";
    let settings = json!({
        "guestReportedAddresses": "Allow",
        "servingAddressRanges": ["2001:db8::/32", "203.0.113.0/28"],
    });
    let scene = Scene::start(&SITE, "serving-ranges", settings);
    let kubectl = member(&scene, &["203.0.113.7", "203.0.113.70"]);
    let ask = |name: &str, last: u8| {
        kubectl.create_object(&request(name, "member", [203, 0, 113, last]));
    };

    ask("first-inside", 7);
    ask("first-outside", 70);

    let issued = scene.answer("first-inside");
    assert!(is_issued(&issued), "{issued:#}");
    scene.assert_denied("first-outside", OUT_OF_RANGE);

    // The ranges are changed, so that the address in the issued certificate is no longer permitted.
    scene.change(&json!({"servingAddressRanges": ["203.0.113.64/26"]}));
    let mut asked = 0;
    let denied = poll(SWEPT, || {
        asked += 1;
        let name = format!("renewal-{asked}");
        ask(&name, 7);
        let answer = scene.answer(&name);
        (reason_of(&answer, "Denied") == Some(OUT_OF_RANGE)).then_some(answer)
    });
    assert!(denied.is_some(), "{asked} renewals are issued");
    ask("then-inside", 70);
    let issued = scene.answer("then-inside");
    assert!(is_issued(&issued), "{issued:#}");
    // An address in the range must also be reported for this member.
    ask("not-reported", 71);
    scene.assert_denied("not-reported", "ServingNameNotReported");
}

#[test]
fn another_approver_of_serving_requests_is_named_until_it_is_removed() {
    const CONDITION: &str = "NoOtherServingApprover";
    let scene = Scene::start(&SITE, "serving-others", json!({}));
    scene.wait_for_condition(CONDITION, "True", "NoneFound", &[]);
    let kubectl = scene.kubectl();

    kubectl.create_object(&request("by-admin", "n1", [203, 0, 113, 7]));
    kubectl.ok(["certificate", "approve", "by-admin"]);

    let words = ["1 with the reason \"KubectlApprove\""];
    scene.wait_for_condition(CONDITION, "False", "ApprovedByOthers", &words);
    // The API server does not store any other information about the approver.
    let csr = kubectl.json(["get", "csr", "by-admin", "--show-managed-fields"]);
    let fields = csr["metadata"]["managedFields"].to_string();
    assert!(!fields.contains("approval"), "{fields}");

    kubectl.ok(["delete", "csr", "by-admin"]);
    kubectl.apply_object(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "approver"},
        "rules": [{
            "apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
            "resourceNames": [BUILT_IN_SERVING_SIGNER], "verbs": ["approve"],
        }],
    }));
    kubectl.apply_object(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "approver"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "approver",
        },
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "approver"}],
    }));
    let words = ["ClusterRoleBinding approver to approver (ServiceAccount kube-system/approver)"];
    scene.wait_for_condition(CONDITION, "False", "OthersCanApprove", &words);

    kubectl.ok(["delete", "clusterrolebinding", "approver"]);
    scene.wait_for_condition(CONDITION, "True", "NoneFound", &[]);
}
