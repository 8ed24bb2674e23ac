//! Tests of a plugin that is newer than its controller.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::evidence::version_of;
use kubelet_attestation::version::SUPPORTED_VERSIONS_ANNOTATION;
use kubelet_authenticator_test_support::api_server::{ApiServer, Signer, Verb};
use kubelet_authenticator_tests::node::{Node, Run, UNDER_TEST};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);

/// Runs a plugin that creates the versions `ours` against a controller that accepts the versions `theirs`, and signs
/// the second request.
fn run(ours: &str, theirs: &str) -> (ApiServer, Run) {
    let server = ApiServer::start();
    let mut node = Node::new(UNDER_TEST, &server);
    node.set_env("VERSIONS", ours);
    let run = node.start(&[]);
    server.wait_for_request(Verb::Watch, 1, SOON);
    server.set_signer(Signer::issue());
    let mut csr = server.csrs().remove(0);
    csr["metadata"]["annotations"][SUPPORTED_VERSIONS_ANNOTATION] = theirs.into();
    csr["status"]["conditions"] = serde_json::json!([{
        "type": "Failed", "status": "True", "reason": "UnsupportedAttestationVersion", "message": "no",
    }]);
    server.put_csr(csr);
    (server, run.finish())
}

fn versions(server: &ApiServer) -> Vec<String> {
    let bodies = server.created_bodies().into_iter();
    bodies
        .map(|body| {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let request = STANDARD
                .decode(body["spec"]["request"].as_str().unwrap())
                .unwrap();
            let evidence = Envelope::parse(&request).unwrap().evidence.unwrap();
            version_of(&evidence).unwrap().to_string()
        })
        .collect()
}

#[test]
fn a_second_request_uses_the_common_evidence_version() {
    let (server, run) = run("v3,v2,v1", "v1,v2");

    run.succeeded();

    assert_eq!(versions(&server), ["v3", "v2"]);
}

#[test]
fn a_missing_common_evidence_version_exits_with_16_and_both_lists() {
    let (server, run) = run("v3", "v1,v2");

    run.failed(16).saying("v3").saying("v1,v2");

    assert_eq!(versions(&server), ["v3"]);
}
