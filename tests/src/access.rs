//! The controller's own access to workload clusters.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use kubelet_attestation::names::Provider;
use serde_json::json;

use crate::management::{Management, WorkloadCluster};
use crate::program;

/// The controller's user in the management cluster, and the name of its service account in workload clusters.
pub const NAME: &str = "node-attestation-controller";

/// The namespace of the service account.
pub const NAMESPACE: &str = "node-attestation-system";

/// The output of `render` with this input.
#[track_caller]
fn render(words: &[&str], input: &str) -> String {
    let mut child = Command::new(program(NAME))
        .arg("render")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that does not read its input can exit first.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Gives the controller its own access to the Cluster, like an operator, with a token that was issued this long ago.
#[track_caller]
pub fn give(management: &Management, cluster: &WorkloadCluster, age: Duration) {
    let plane = cluster.control_plane();
    plane.kubectl().apply(&render(&["workload-rights"], ""));
    let token = plane.service_account_token(NAMESPACE, NAME, "720h");
    let token = plane.aged_token(&token, age);
    let key = format!("{}/{}", cluster.namespace(), cluster.name());
    let admin = plane.admin_kubeconfig().to_str().unwrap();
    let secret = [
        "workload-secret",
        &key,
        "--workload-kubeconfig",
        admin,
        "--controller-namespace=default",
        "--insecure-allow-loopback",
    ];
    management.kubectl().apply(&render(&secret, &token));
    let roles = [
        "secret-roles",
        &key,
        "--controller=user:node-attestation-controller",
        "--controller-namespace=default",
    ];
    management.kubectl().apply(&render(&roles, ""));
}

/// Permits the controller to sign for the provider `null`, which exists only in tests. The project's manifests do not
/// contain this permission.
#[track_caller]
pub fn permit_null(cluster: &WorkloadCluster) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let name = format!("{NAME}-null");
    let signers = [
        Provider::NULL.client_signer(),
        Provider::NULL.serving_signer(),
    ];
    let kubectl = cluster.control_plane().kubectl();
    kubectl.apply_object(&json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{
            "apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
            "resourceNames": signers, "verbs": ["approve", "sign"],
        }],
    }));
    kubectl.apply_object(&json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    }));
}
