//! Tests of serving certificates in Clusters whose CA key is only in a token.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::BUILT_IN_SERVING_SIGNER;
use kubelet_authenticator_test_support::control_plane::Controllers;
use kubelet_authenticator_test_support::process::{Process, poll};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::controller::{certificate_of, is_issued, is_signed_by, reason_of};
use kubelet_authenticator_tests::fleet::{Manager, authorize, kubelet_of_tpm, management};
use kubelet_authenticator_tests::pods;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use kubelet_authenticator_tests::tpm::provider_id;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use super::Token;
use super::management::{checked, endpoint, scene, token_of};

const CONDITION: &str = "NoOtherServingApprover";

/// Starts a Cluster whose CA key is only in the token, with these Kubernetes controllers, and a controller that signs
/// serving certificates. The processes end when the tuple is dropped.
fn start(namespace: &str, controllers: Controllers) -> (Scene, Token, Process) {
    let management = management();
    let cluster = management.cluster("prod-1").namespace(namespace);
    let cluster = cluster.controllers(controllers).create();
    cluster.write_ca(cluster.control_plane().ca().certificate_pem(), None);
    let (token, signer) = token_of(&cluster);
    let keys = token.scratch.directory("challenge-keys");
    token
        .scratch
        .write("challenge-keys/current", "0f".repeat(32));
    let keys = keys.display().to_string();
    let endpoint = format!("{},kubelet-serving", endpoint(&token));
    let arguments = [&*endpoint, "--tpm-challenge-keys", &keys];
    let manager = Manager::start(&management, "node-attestation-controller", &arguments);
    let authentication = authorize(&management, &cluster, &["tpm"], json!({}));
    authentication.wait_until_ready(management.kubectl());
    let scene = scene(management, manager, cluster, authentication);
    (scene, token, signer)
}

/// Creates a request for a serving certificate, as an administrator.
fn request(name: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, "system:node:n1");
    params.subject_alt_names = vec![SanType::IpAddress([203, 0, 113, 7].into())];
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
        },
    })
}

#[test]
fn a_cluster_without_ca_key_serves_through_its_external_signer() {
    let (scene, _token, mut signer) = start("serving", Controllers::None);
    let tpm = TpmMachine::new(Swtpm::start().into(), EndorsementKey::P384);
    let machine = scene.cluster.machine("host-1");
    let machine = machine.provider_id(&provider_id(&tpm)).create();
    let kubelet = kubelet_of_tpm(&scene.cluster, &machine, &tpm.tpm().tcti());
    let kubelet = kubelet.server_tls_bootstrap().reachable().runs_pods();
    machine.set_addresses(&[("InternalIP", &kubelet.ip().to_string())]);

    let kubelet = kubelet.start();

    let answer = poll(SWEPT, || {
        let answer = kubelet.healthz_through_the_api_server();
        answer.status.success().then_some(answer.stdout)
    });
    assert_eq!(answer.as_deref(), Some(&b"ok"[..]), "{}", kubelet.log());
    let plane = scene.cluster.control_plane();
    let csr = plane.wait_for_csr("for serving", |csr| {
        csr["spec"]["signerName"] == BUILT_IN_SERVING_SIGNER && is_issued(csr)
    });
    let reason = Some("ServingNamesCorroborated");
    assert_eq!(reason_of(&csr, "Approved"), reason);
    let certificate = certificate_of(&csr).unwrap();
    assert!(is_signed_by(&certificate, plane.ca().certificate_pem()));
    signer.wait_for_log("system:node:host-1", SWEPT);
    scene.wait_for_condition(CONDITION, "True", "NoneFound", &[]);
    let kubectl = scene.kubectl();
    // No controller creates the ServiceAccount, without which the API server rejects pods.
    kubectl.create_object(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "default"},
    }));
    pods::run(kubectl, "served", machine.node_name());
    let logs = pods::logs(kubectl, "served");
    assert!(logs.starts_with("it runs on "), "{logs}");
    pods::exec(kubectl, "served");
}

#[test]
fn another_signer_of_serving_certificates_is_named() {
    // kube-controller-manager has the CA key, and signs each approved request.
    let (scene, _token, _signer) = start("other-signer", Controllers::Certificates);
    scene.wait_for_condition(CONDITION, "True", "NoneFound", &[]);
    let kubectl = scene.kubectl();
    kubectl.create_object(&request("by-admin"));
    kubectl.ok(["certificate", "approve", "by-admin"]);

    let words = [
        "1 with the reason \"KubectlApprove\"",
        "another signer signed 1 requests",
    ];
    scene.wait_for_condition(CONDITION, "False", "ApprovedByOthers", &words);
    let checked = checked(&scene);
    let warning = "warn serving-approvers: this controller signs serving certificates";
    for words in [&words[..], &[warning]].concat() {
        assert!(checked.contains(words), "{words}: {checked}");
    }
}
