//! Tests that the plugin uses the arguments of the kubelet that runs it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject;
use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};
use kubelet_authenticator_tests::node::{INSECURE, Node};
use serde_json::Value;

/// A shell that runs the remaining arguments as a command. To this command, the shell looks like a kubelet with the
/// argument `$0`.
const KUBELET: &str = r#"exec -a kubelet bash -c '"$@"; exit $?' "$0" "$@""#;

fn node() -> (ApiServer, Node) {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(INSECURE, &server);
    (server, node)
}

fn under_kubelet(node: &mut Node, argument: &str) {
    node.wrap(&["bash", "-c", KUBELET, argument]);
}

fn asked(server: &ApiServer) -> CertificationRequest {
    let body: Value = serde_json::from_slice(server.created_bodies().last().unwrap()).unwrap();
    let request = STANDARD.decode(body["spec"]["request"].as_str().unwrap());
    let envelope = Envelope::parse(&request.unwrap()).unwrap();
    CertificationRequest::from_der(&envelope.csr).unwrap()
}

#[test]
fn the_node_name_comes_from_the_kubelet_arguments() {
    let (server, mut node) = node();
    node.unset("nodeName");
    under_kubelet(&mut node, "--hostname-override=N7.Example");

    node.run().succeeded();

    let request = asked(&server);
    assert_eq!(
        subject::node_name(request.subject()).unwrap().as_str(),
        "n7.example"
    );
}

#[test]
fn the_provider_id_comes_from_the_kubelet_arguments() {
    let (server, mut node) = node();
    node.unset("providerID");
    under_kubelet(&mut node, "--provider-id=test:///machine-7");

    node.run().succeeded();

    let id = asked(&server).claimed_provider_id().unwrap();
    assert_eq!(id.as_str(), "test:///machine-7");
}

#[test]
fn the_stored_node_name_is_used_if_no_other_is_configured() {
    let (server, mut node) = node();
    let first = node.run().succeeded();
    node.unset("nodeName");

    assert_eq!(node.run().succeeded().pair(), first.pair());
    node.command(&["renew", "--force"]).succeeded();

    let request = asked(&server);
    assert_eq!(
        subject::node_name(request.subject()).unwrap().as_str(),
        "n1"
    );
}

#[test]
fn a_renewal_warns_if_the_kubelet_name_does_not_match_the_store() {
    let (_server, mut node) = node();
    node.set("nodeName", "named-as-no-host-is");
    node.run().succeeded();
    node.unset("nodeName");
    under_kubelet(&mut node, "--v=2");

    let cached = node.run().succeeded();
    let renewed = node.run_with(&["renew", "--force"]).succeeded();

    assert_eq!(cached.stderr, "");
    let renewed = renewed.saying("--hostname-override=named-as-no-host-is");
    assert_eq!(renewed.stderr.lines().count(), 2, "{}", renewed.stderr);
}
