//! Tests of serving certificates for machines with TPMs, with only the permissions in the manifest.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::{BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_test_support::control_plane::User;
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::scene::SWEPT;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use crate::bed::{USUAL, kubelet, machine, node_user, tpm};

/// Creates a request for a serving certificate, from a node with a TPM.
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
            "signerName": Provider::TPM.serving_signer(),
            "usages": SERVING_USAGES,
            "request": BASE64_STANDARD.encode(request.replace("\r\n", "\n")),
            "expirationSeconds": 3600,
        },
    })
}

#[test]
fn a_tpm_node_serves_with_the_kubelet_signer_and_the_tpm_signer() {
    let scene = &*USUAL;
    let tpm = tpm();
    let machine = machine(scene, "serves", &tpm);
    let builder = kubelet(scene, &machine, &tpm.tcti());
    let builder = builder.server_tls_bootstrap().reachable();
    let ip = builder.ip();
    machine.set_addresses(&[("InternalIP", &ip.to_string())]);

    let kubelet = builder.start();

    let answer = poll(SWEPT, || {
        let answer = kubelet.healthz_through_the_api_server();
        answer.status.success().then_some(answer.stdout)
    });
    assert_eq!(answer.as_deref(), Some(&b"ok"[..]), "{}", kubelet.log());
    let plane = scene.cluster.control_plane();
    let user = node_user(&machine);
    let own = plane.wait_for_csr("for serving", |csr| {
        csr["spec"]["username"] == user && csr["spec"]["signerName"] == BUILT_IN_SERVING_SIGNER
    });
    let reason = Some("ServingNamesCorroborated");
    assert_eq!(reason_of(&own, "Approved"), reason);

    // The key and the certificate are in one file.
    let store = kubelet
        .var_lib()
        .join("kubelet-authenticator/kubelet-client.pem");
    let pem = fs::read_to_string(store).unwrap();
    let pair = KeyAndCertificate {
        certificate_pem: pem.clone(),
        key_pem: pem,
    };
    let node = plane.kubectl_with(plane.kubeconfig(User::Certificate(pair)));
    node.create_object(&request("serves-itself", "serves", ip.octets()));
    node.create_object(&request("serves-another", "serves", [203, 0, 113, 2]));

    let issued = scene.answer("serves-itself");
    assert!(is_issued(&issued), "{issued:#}");
    assert_eq!(reason_of(&issued, "Approved"), reason);
    scene.assert_denied("serves-another", "ServingNameNotReported");
}
