//! Tests of requests in the format of stock kubelets. The tests create these requests by hand.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::csr::CLIENT_USAGES;
use kubelet_attestation::names::BUILT_IN_CLIENT_SIGNER;
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::{Value, json};

/// The name of the admission policy for requests with bootstrap tokens or node certificates, and of its binding.
pub const POLICY: &str = "node-attestation-requests";

/// A request for a node's client certificate, without evidence.
pub fn request(name: &str, node_name: &str) -> Value {
    request_with_key(name, node_name).0
}

/// Like [`request`], with the private key in PEM.
pub fn request_with_key(name: &str, node_name: &str) -> (Value, String) {
    let (request, key) = certificate_request(&Subject::node(node_name), None);
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": BUILT_IN_CLIENT_SIGNER,
            "usages": CLIENT_USAGES,
            "request": BASE64_STANDARD.encode(request.replace("\r\n", "\n")),
        },
    });
    (request, key)
}

/// Sends the request until the API server responds with this warning or error. If no warning or error is expected,
/// sends it until it is accepted. Returns the response. The API server receives policies with a separate watch.
#[track_caller]
pub fn file(scene: &Scene, kubeconfig: &Path, request: &Value, wanted: Option<&str>) -> String {
    let kubectl = scene.cluster.control_plane().kubectl_with(kubeconfig);
    let mut last = String::new();
    let found = poll(SWEPT, || {
        let output = kubectl.run_with_input(["create", "-f", "-"], &request.to_string());
        last = String::from_utf8_lossy(&output.stderr).into_owned();
        match wanted {
            Some(words) => last.contains(words).then_some(()),
            None => output.status.success().then_some(()),
        }
    });
    assert!(found.is_some(), "{wanted:?}: {last}");
    last
}

/// Whether an object of this kind and name exists in the workload cluster.
pub fn is_there(scene: &Scene, kind: &str, name: &str) -> bool {
    scene.kubectl().run(["get", kind, name]).status.success()
}

/// Waits until the object exists, or until it no longer exists.
#[track_caller]
pub fn wait_until(scene: &Scene, kind: &str, name: &str, there: bool) {
    let found = poll(SWEPT, || {
        (is_there(scene, kind, name) == there).then_some(())
    });
    assert!(found.is_some(), "{kind} {name}: not {there}");
}
