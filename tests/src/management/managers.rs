//! Cluster API's own managers, as processes beside the API server of a management cluster.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, DEADLINE, Kubectl, User};
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents};
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, free_port};
use serde_json::{Value, json};

/// The managers, and the manifests of each.
pub(super) static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    binaries::build(&tests.join("cluster-api/managers/build"))
});

const CORE: &str = "core";
const KUBEADM_BOOTSTRAP: &str = "kubeadm-bootstrap";

/// The kubeadm bootstrap provider reads the version of a Machine's control plane, and its manifest
/// lets it read KubeadmControlPlanes alone.
const READS_CONTROL_PLANES: &str = "reads-control-planes";

/// The core provider and the kubeadm bootstrap provider, each with the ServiceAccount and the
/// rights of its manifest, and with its webhooks.
///
/// Their webhooks listen on all addresses: no flag says which.
#[derive(Debug)]
pub(super) struct Managers {
    _processes: Vec<Process>,
    _files: Scratch,
}

impl Managers {
    /// Starts them, and waits until they are ready; bootstrap tokens live that long.
    #[track_caller]
    pub(super) fn start(cluster: &ControlPlane, token_ttl: Duration) -> Self {
        let files = Scratch::new("cluster-api");
        let authority = CertificateAuthority::new("webhooks");
        let serving = authority.issue(&Contents::server(&["127.0.0.1"]));
        serving.write(files.path(), "tls");

        let ttl = format!("--bootstrap-token-ttl={}s", token_ttl.as_secs());
        // Both are alpha, and off: without them no configuration for Ignition is accepted, and no
        // ClusterClass.
        let ignition = "--feature-gates=KubeadmBootstrapFormatIgnition=true";
        let classes = "--feature-gates=ClusterTopology=true";
        let managers = [
            (CORE, vec![classes]),
            (KUBEADM_BOOTSTRAP, vec![ttl.as_str(), ignition]),
        ];
        let processes = managers.map(|(name, flags)| {
            let port = free_port();
            let account = install(cluster.kubectl(), name, port, authority.certificate_pem());
            start(cluster, name, &account, port, &flags, &files)
        });
        let mut processes = Vec::from(processes);
        for (process, health) in &mut processes {
            process.poll_alive("be ready", DEADLINE, |_| is_ready(*health).then_some(()));
        }
        Self {
            _processes: processes.into_iter().map(|(process, _)| process).collect(),
            _files: files,
        }
    }
}

/// Applies a manager's manifests, with its webhooks on that port; gives its ServiceAccount.
#[track_caller]
fn install(kubectl: &Kubectl, name: &str, port: u16, ca: &str) -> Value {
    let path = BUILT.join(format!("{name}.json"));
    let list = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut list: Value = serde_json::from_slice(&list).unwrap();
    let mut account = Value::Null;
    for object in list["items"].as_array_mut().unwrap() {
        let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
        for webhook in webhooks.into_iter().flatten() {
            call_on(&mut webhook["clientConfig"], port, ca);
        }
        if let Some(client) = object.pointer_mut("/spec/conversion/webhook/clientConfig") {
            call_on(client, port, ca);
        }
        kubectl.apply_server_side(object);
        if object["kind"] == "ServiceAccount" {
            account = object["metadata"].clone();
        }
    }
    let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
    kubectl.ok(wait.into_iter().chain(["crd", "--all"]));
    if name == KUBEADM_BOOTSTRAP {
        let subject = json!({
            "kind": "ServiceAccount",
            "name": account["name"], "namespace": account["namespace"],
        });
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": READS_CONTROL_PLANES },
            "rules": [{
                "apiGroups": ["controlplane.cluster.x-k8s.io"],
                "resources": ["*"], "verbs": ["get", "list", "watch"],
            }],
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": READS_CONTROL_PLANES },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": READS_CONTROL_PLANES,
            },
            "subjects": [subject],
        });
        for object in [role, binding] {
            kubectl.apply_server_side(&object);
        }
    }
    account
}

/// Replaces the Service in a webhook's client configuration by a URL on loopback.
fn call_on(client: &mut Value, port: u16, ca: &str) {
    let path = client["service"]["path"].as_str().unwrap_or_default();
    *client = json!({
        "url": format!("https://127.0.0.1:{port}{path}"),
        "caBundle": BASE64_STANDARD.encode(ca),
    });
}

/// Starts a manager; gives the port of its health probes too.
#[track_caller]
fn start(
    cluster: &ControlPlane,
    name: &str,
    account: &Value,
    port: u16,
    flags: &[&str],
    files: &Scratch,
) -> (Process, u16) {
    let [account, namespace] = ["name", "namespace"].map(|field| account[field].as_str().unwrap());
    let words = [
        "create",
        "token",
        account,
        "-n",
        namespace,
        "--duration=24h",
    ];
    let token = cluster.kubectl().ok(words).trim().to_owned();
    let kubeconfig = cluster.kubeconfig(User::Token(token));
    let health = free_port();
    let launch = Launch::new(name, BUILT.join(name))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg(format!("--webhook-port={port}"))
        .arg("--webhook-cert-dir")
        .arg(files.path())
        .arg(format!("--health-addr=127.0.0.1:{health}"))
        .arg(format!("--diagnostics-address=127.0.0.1:{}", free_port()))
        .args(["--insecure-diagnostics=true", "-v=2"])
        .args(flags);
    (launch.spawn(&files.join(&format!("{name}.log"))), health)
}

/// Whether the probe says so, which waits for the webhooks.
fn is_ready(port: u16) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.0 200"))
}
