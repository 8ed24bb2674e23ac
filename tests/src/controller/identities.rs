//! The definition of node identities in a cluster without a management cluster.

use kubelet_authenticator_test_support::api_server::{ApiServer, Definition};
use kubelet_authenticator_test_support::control_plane::Kubectl;
use node_attestation_core::crd::{identity_manifest, yaml};

/// Serves node identities in the in-memory API server.
pub fn serve_identities(server: &ApiServer) {
    let definition = serde_json::to_value(identity_manifest()).unwrap();
    for kind in Definition::of_crd(&definition) {
        server.define(kind);
    }
}

/// Installs the CustomResourceDefinition of node identities in a real cluster, and waits until it is established.
#[track_caller]
pub fn define_identities(kubectl: &Kubectl) {
    let definition = identity_manifest();
    let name = definition.metadata.name.clone().unwrap();
    kubectl.apply(&yaml(&definition).unwrap());
    let wait = ["wait", "--for=condition=Established", "--timeout=180s"];
    let definition = format!("crd/{name}");
    kubectl.ok(wait.into_iter().chain([&*definition]));
}
