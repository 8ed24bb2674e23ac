//! Serving certificates for the addresses that Cluster API has.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::BUILT_IN_SERVING_SIGNER;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::is_issued;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use crate::SITE;

/// A request for a serving certificate for this address.
fn request(name: &str, node_name: &str, address: [u8; 4]) -> Value {
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

#[test]
fn a_pool_member_serves_at_its_reported_address_where_allowed() {
    let scene = Scene::start(&SITE, "serving-pool", json!({}));
    let id = "generic:///pool/member";
    let pool = scene.cluster.pool("pool-a").provider_ids(&[id]).create();
    let application = scene.stamped("member", id);
    let credential = scene.join_by(&pool.bootstrap_kubeconfig(), &application);
    let kubectl = scene.cluster.control_plane().kubectl_with(credential);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "member"}});
    kubectl.create_object(&node);
    let addresses = json!([{"type": "InternalIP", "address": "203.0.113.7"}]);
    let status = ["node", "member", "--subresource=status"];
    kubectl.patch(&status, &json!({"status": {"addresses": addresses}}));

    kubectl.apply_object(&request("refused", "member", [203, 0, 113, 7]));

    scene.assert_denied("refused", "ServingNameNotReported");

    scene.change(&json!({"guestReportedAddresses": "Allow"}));
    let mut asked = 0;
    let issued = poll(SWEPT, || {
        asked += 1;
        let name = format!("allowed-{asked}");
        kubectl.apply_object(&request(&name, "member", [203, 0, 113, 7]));
        Some(scene.answer(&name)).filter(is_issued)
    });
    assert!(issued.is_some(), "{asked} requests are denied");
    // And none for an address that it does not report.
    kubectl.apply_object(&request("another", "member", [203, 0, 113, 8]));
    scene.assert_denied("another", "ServingNameNotReported");
}
