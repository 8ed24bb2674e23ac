//! A request from a machine without evidence, sent in the same way as by its node.

use kubelet_attestation::names::Provider;
use kubelet_authenticator_tests::controller::{Application, certificate_of, is_answered};
use kubelet_authenticator_tests::management::{Machine, WorkloadCluster};
use serde_json::Value;

/// Sends the machine's request. Returns its name.
pub fn file(cluster: &WorkloadCluster, machine: &Machine) -> String {
    let (node, id) = (machine.node_name(), machine.provider_id());
    let application = Application::claiming(node, id, Provider::INSECURE, None);
    let plane = cluster.control_plane();
    let kubectl = plane.kubectl_with(machine.bootstrap_kubeconfig());
    kubectl.create_object(&application.to_json());
    application.name()
}

/// Waits until the request has an answer, and returns the request.
#[track_caller]
pub fn answer(cluster: &WorkloadCluster, name: &str) -> Value {
    cluster.control_plane().wait_for_csr(name, |csr| {
        csr["metadata"]["name"] == name && is_answered(csr)
    })
}

/// The certificate that the machine receives, as PEM.
#[track_caller]
pub fn join(cluster: &WorkloadCluster, machine: &Machine) -> String {
    let csr = answer(cluster, &file(cluster, machine));
    certificate_of(&csr).unwrap_or_else(|| panic!("{csr:#}"))
}
