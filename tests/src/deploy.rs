//! The manifests in packaging/deploy, and controllers that use the permissions and arguments in these manifests.

use std::path::{Path, PathBuf};
use std::process::Command;

use kubelet_authenticator_test_support::binaries::control_plane_binary;
use kubelet_authenticator_test_support::control_plane::User;
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch};
use serde_json::Value;

use crate::management::Management;
use crate::scrape::Diagnostics;
use crate::versions::Version;

/// The namespace of the manifests.
pub const NAMESPACE: &str = "node-attestation-system";

/// The name of the Deployment, its ServiceAccount and its Lease.
pub const NAME: &str = "node-attestation-controller";

/// The directory of the manifests.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deploy")
}

/// The output of `kubectl kustomize` for the manifests.
#[track_caller]
pub fn components() -> String {
    kustomize(&[], &folder())
}

/// The output of `kubectl kustomize`.
#[track_caller]
pub fn kustomize(options: &[&str], folder: &Path) -> String {
    let mut kubectl = Command::new(control_plane_binary("kubectl"));
    let kubectl = kubectl.arg("kustomize").args(options).arg(folder);
    let output = kubectl.output().expect("kubectl can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).expect("manifests are text")
}

/// Applies manifests as an operator does. The API server must not report an error or a warning.
#[track_caller]
pub fn apply(management: &Management, manifests: &str) {
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let output = management.kubectl().run_with_input(apply, manifests);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    // kubectl must not print warnings either.
    assert_eq!(error, "");
    let applied = String::from_utf8_lossy(&output.stdout).into_owned();
    let objects = manifests.split("\n---\n").count();
    assert_eq!(applied.lines().count(), objects, "{applied}");
}

/// The Deployment, as the API server stores it.
#[track_caller]
pub fn deployment(management: &Management, namespace: &str) -> Value {
    let kubectl = management.kubectl();
    kubectl.json(["get", "deployment", NAME, "-n", namespace])
}

/// A token for the ServiceAccount.
#[track_caller]
pub fn token(management: &Management, namespace: &str) -> String {
    let token = ["create", "token", NAME, "-n", namespace, "--duration=1h"];
    management.kubectl().ok(token).trim().to_owned()
}

/// The arguments in the Deployment, with different ports.
#[track_caller]
pub fn arguments(deployment: &Value, diagnostics: Diagnostics) -> Vec<String> {
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().expect("it has arguments");
    let arguments = arguments.iter().map(|argument| {
        let argument = argument.as_str().expect("arguments are text");
        let [metrics, health] = diagnostics.arguments();
        match argument.split_once('=') {
            Some(("--metrics-bind-address", ":8080")) => metrics,
            Some(("--health-addr", ":9440")) => health,
            _ => argument.to_owned(),
        }
    });
    arguments.collect()
}

/// Starts a controller with the permissions of the ServiceAccount, and the arguments in the Deployment with different
/// ports. Also returns the addresses of the controller's metrics and probes.
#[track_caller]
pub fn start(
    management: &Management,
    namespace: &str,
    files: &Scratch,
    name: &str,
) -> (Process, Diagnostics) {
    start_version(&Version::CURRENT, management, namespace, files, name)
}

/// Like [`start`], but starts this version of the controller.
#[track_caller]
pub fn start_version(
    version: &Version,
    management: &Management,
    namespace: &str,
    files: &Scratch,
    name: &str,
) -> (Process, Diagnostics) {
    let plane = management.control_plane();
    let kubeconfig = plane.kubeconfig(User::Token(token(management, namespace)));
    // The option that passes the Pod's own namespace.
    let current = format!("--namespace={namespace}");
    plane
        .kubectl_with(&kubeconfig)
        .ok(["config", "set-context", "--current", &current]);
    let diagnostics = Diagnostics::default();
    let deployment = deployment(management, namespace);
    let launch = Launch::new(name, version.program(NAME))
        .args(arguments(&deployment, diagnostics))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        // The API servers in the tests listen on loopback, and a cluster in the tests is not Ready without evidence.
        .args(["--insecure-allow-loopback", "--allow-insecure"])
        .args(["--sync-period=10s"]);
    let process = launch.spawn(&files.join(&format!("{name}.log")));
    (process, diagnostics)
}

/// Like [`start`], but also waits until the controller holds the Lease in the namespace.
#[track_caller]
pub fn lead(management: &Management, namespace: &str, files: &Scratch) -> Process {
    let (process, diagnostics) = start(management, namespace, files, "manager");
    diagnostics.wait_until_ready();
    diagnostics.wait_for(&[&format!(r#"node_attestation_leader{{lease="{NAME}"}} 1.0"#)]);
    assert!(lease(management, namespace).is_some());
    process
}

/// The Lease in this namespace.
#[track_caller]
pub fn lease(management: &Management, namespace: &str) -> Option<Value> {
    let kubectl = management.kubectl();
    let list = kubectl.json(["get", "leases", "-n", namespace]);
    let mut leases = list["items"].as_array().expect("a list").iter();
    leases
        .find(|lease| lease["metadata"]["name"] == NAME)
        .cloned()
}
