//! metrics-server, which serves `kubectl top`, as a process next to a cluster's API server.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, DEADLINE, Kubectl};
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, free_port, poll};
use serde_json::{Value, json};

use crate::management::managers::{read, service_account_kubeconfig};
use crate::pods::text;

/// The directory with the program and its manifests.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    binaries::build(&tests.join("metrics-server/build"))
});

/// A running metrics-server, with the ServiceAccount, the permissions and the APIService in its manifests.
///
/// As in its manifests, it accepts only serving certificates that the cluster's CA has signed.
#[derive(Debug)]
pub struct MetricsServer {
    process: Process,
    kubectl: Kubectl,
    service: String,
    _files: Scratch,
}

impl Drop for MetricsServer {
    /// The APIService is deleted, because an APIService without a server would stop the garbage collection in the
    /// cluster.
    fn drop(&mut self) {
        let words = ["delete", "apiservice", &self.service, "--wait=false"];
        self.kubectl.run(words);
    }
}

impl MetricsServer {
    /// Starts metrics-server, and waits until the API server forwards requests to it.
    #[track_caller]
    pub fn start(plane: &ControlPlane) -> Self {
        let kubectl = plane.kubectl();
        let port = free_port();
        let mut account = Value::Null;
        let mut service = Value::Null;
        let mut name = String::new();
        for mut object in read(&BUILT.join("metrics-server.json")) {
            match object["kind"].as_str() {
                Some("ServiceAccount") => account = object["metadata"].clone(),
                Some("APIService") => {
                    object["spec"]["service"]["port"] = json!(port);
                    service = object["spec"]["service"].clone();
                    name = object["metadata"]["name"].as_str().unwrap().to_owned();
                }
                _ => {}
            }
            kubectl.apply_server_side(&object);
        }
        // Endpoints must not be loopback addresses, but a name that resolves to a loopback address is accepted.
        kubectl.apply_server_side(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": service["name"], "namespace": service["namespace"] },
            "spec": {
                "type": "ExternalName", "externalName": "localhost",
                "ports": [{ "port": port }],
            },
        }));
        let files = Scratch::new("metrics-server");
        let kubeconfig = service_account_kubeconfig(plane, &account);
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut process = Launch::new("metrics-server", BUILT.join("metrics-server"))
            .args(
                [
                    "kubeconfig",
                    "authentication-kubeconfig",
                    "authorization-kubeconfig",
                ]
                .map(|name| flag(name, &kubeconfig)),
            )
            .arg(flag("kubelet-certificate-authority", &plane.ca_cert_path()))
            .arg(flag("cert-dir", files.path()))
            .args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")])
            .args([
                "--kubelet-use-node-status-port",
                "--kubelet-preferred-address-types=InternalIP",
            ])
            // The minimum resolution that metrics-server accepts. The resolution must be longer than the request
            // timeout.
            .args(["--metric-resolution=10s", "--kubelet-request-timeout=5s"])
            .spawn(&files.join("metrics-server.log"));
        process.poll_alive("be called by the API server", DEADLINE, |_| {
            kubectl.raw("/apis/metrics.k8s.io/v1beta1").ok()
        });
        Self {
            process,
            kubectl: kubectl.clone(),
            service: name,
            _files: files,
        }
    }

    /// Waits until `kubectl top` reports the usage of `count` objects. Returns the lines of the output, without the
    /// header.
    #[track_caller]
    pub fn top(&self, kubectl: &Kubectl, resource: &str, count: usize) -> Vec<String> {
        let mut said = String::new();
        let printed = poll(DEADLINE, || {
            let printed = kubectl.run(["top", resource, "--no-headers"]);
            let table = text(&printed.stdout);
            let lines: Vec<_> = table.lines().map(ToOwned::to_owned).collect();
            let are_all = lines.len() == count && !table.contains("<unknown>");
            said = table + &text(&printed.stderr);
            (printed.status.success() && are_all).then_some(lines)
        });
        printed.unwrap_or_else(|| panic!("{said}{}", self.process.log()))
    }

    /// Waits until the log of metrics-server contains a line with `needle`.
    #[track_caller]
    pub fn wait_until_it_logs(&mut self, needle: &str) {
        let what = format!("log {needle:?}");
        self.process.poll_alive(&what, DEADLINE, |process| {
            let log = process.log();
            log.find_after(process.log_start(), needle)
        });
    }
}
