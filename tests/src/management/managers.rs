//! Cluster API's own managers, as processes next to the API server of a management cluster.

mod upgraded;

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

pub use self::upgraded::OlderClusterApi;

/// The directory of the managers and their manifests.
pub(super) static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    binaries::build(&tests.join("cluster-api/managers/build"))
});

const CORE: &str = "core";
const KUBEADM_BOOTSTRAP: &str = "kubeadm-bootstrap";
const KUBEADM_CONTROL_PLANE: &str = "kubeadm-control-plane";

/// The managers for Clusters with external control planes.
pub(super) const WITHOUT_CONTROL_PLANES: [&str; 2] = [CORE, KUBEADM_BOOTSTRAP];

/// All managers.
pub(super) const ALL: [&str; 3] = [CORE, KUBEADM_BOOTSTRAP, KUBEADM_CONTROL_PLANE];

/// The name of additional permissions. The kubeadm bootstrap provider reads the version of a Machine's control plane,
/// but its manifest permits only reads of KubeadmControlPlanes.
const READS_CONTROL_PLANES: &str = "reads-control-planes";

/// The managers of Cluster API's providers, with their webhooks. Each manager has the ServiceAccount and the
/// permissions from its manifest.
///
/// The webhooks listen on all addresses, because the managers do not have a flag for the address.
#[derive(Debug)]
pub(super) struct Managers {
    processes: Vec<Process>,
    webhooks: Webhooks,
}

/// The directory with the certificate and the key for webhooks.
#[derive(Debug)]
pub(super) struct Webhooks {
    files: Scratch,
    ca: String,
}

impl Webhooks {
    pub(super) fn new() -> Self {
        let files = Scratch::new("cluster-api");
        let authority = CertificateAuthority::new("webhooks");
        let serving = authority.issue(&Contents::server(&["127.0.0.1"]));
        serving.write(files.path(), "tls");
        Self {
            files,
            ca: authority.certificate_pem().to_owned(),
        }
    }
}

/// A started manager.
#[derive(Debug)]
pub(super) struct Manager {
    process: Process,
    /// The port for the manager's health probes.
    health: u16,
}

impl Manager {
    /// Waits until the manager serves its webhooks.
    #[track_caller]
    pub(super) fn wait_until_ready(mut self) -> Process {
        let Self { process, health } = &mut self;
        process.poll_alive("be ready", DEADLINE, |_| is_ready(*health).then_some(()));
        self.process
    }
}

impl Managers {
    /// Starts the managers, and waits until all of them are ready. Bootstrap tokens have this lifetime.
    #[track_caller]
    pub(super) fn start(cluster: &ControlPlane, names: &[&str], token_ttl: Duration) -> Self {
        let webhooks = Webhooks::new();
        let started = names.iter().map(|name| {
            let port = free_port();
            let manifests = BUILT.join(format!("{name}.json"));
            let account = install(cluster.kubectl(), &manifests, port, &webhooks);
            if *name == KUBEADM_BOOTSTRAP {
                let_read_control_planes(cluster.kubectl(), &account);
            }
            let program = Launch::new(name, BUILT.join(name)).args(flags(name, token_ttl));
            start(cluster, program, &account, port, &webhooks)
        });
        // Start all managers before you wait for the first one.
        let started: Vec<_> = started.collect();
        let processes = started.into_iter().map(Manager::wait_until_ready);
        Self {
            processes: processes.collect(),
            webhooks,
        }
    }
}

/// The options for this manager.
fn flags(name: &str, token_ttl: Duration) -> Vec<String> {
    // Both feature gates are off by default. Without these gates, the managers reject Ignition configurations and
    // ClusterClasses.
    let gate = |gate: &str| format!("--feature-gates={gate}=true");
    match name {
        CORE | KUBEADM_CONTROL_PLANE => vec![gate("ClusterTopology")],
        KUBEADM_BOOTSTRAP => vec![
            format!("--bootstrap-token-ttl={}s", token_ttl.as_secs()),
            gate("KubeadmBootstrapFormatIgnition"),
        ],
        _ => Vec::new(),
    }
}

/// Applies a manager's manifests, with its webhooks on this port. Returns its ServiceAccount.
#[track_caller]
pub(super) fn install(
    kubectl: &Kubectl,
    manifests: &Path,
    port: u16,
    webhooks: &Webhooks,
) -> Value {
    let objects = with_webhooks_on(port, manifests, webhooks);
    for object in &objects {
        kubectl.apply_server_side(object);
    }
    wait_until_established(kubectl);
    account_of(&objects)
}

#[track_caller]
fn wait_until_established(kubectl: &Kubectl) {
    let wait = ["wait", "--for=condition=Established", "--timeout=180s"];
    kubectl.ok(wait.into_iter().chain(["crd", "--all"]));
}

/// The metadata of the manager's ServiceAccount, from its manifests.
fn account_of(objects: &[Value]) -> Value {
    let mut objects = objects.iter();
    let account = objects.rfind(|object| object["kind"] == "ServiceAccount");
    account.map_or(Value::Null, |account| account["metadata"].clone())
}

/// The objects in a manager's manifests, with its webhooks on this port.
#[track_caller]
fn with_webhooks_on(port: u16, manifests: &Path, webhooks: &Webhooks) -> Vec<Value> {
    let ca = &webhooks.ca;
    let mut objects = read(manifests);
    for object in &mut objects {
        let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
        for webhook in webhooks.into_iter().flatten() {
            call_on(&mut webhook["clientConfig"], port, ca);
        }
        if let Some(client) = object.pointer_mut("/spec/conversion/webhook/clientConfig") {
            call_on(client, port, ca);
        }
    }
    objects
}

/// The objects in a manager's manifests.
#[track_caller]
pub(crate) fn read(manifests: &Path) -> Vec<Value> {
    let list = fs::read(manifests);
    let list = list.unwrap_or_else(|error| panic!("{}: {error}", manifests.display()));
    let mut list: Value = serde_json::from_slice(&list).unwrap();
    match list["items"].take() {
        Value::Array(items) => items,
        other => panic!("{}: {other}", manifests.display()),
    }
}

#[track_caller]
fn let_read_control_planes(kubectl: &Kubectl, account: &Value) {
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

/// Replaces the Service in a webhook's client configuration with a URL on loopback.
fn call_on(client: &mut Value, port: u16, ca: &str) {
    let path = client["service"]["path"].as_str().unwrap_or_default();
    *client = json!({
        "url": format!("https://127.0.0.1:{port}{path}"),
        "caBundle": BASE64_STANDARD.encode(ca),
    });
}

/// Starts a manager as this ServiceAccount, with its webhooks on this port.
#[track_caller]
pub(super) fn start(
    cluster: &ControlPlane,
    program: Launch,
    account: &Value,
    port: u16,
    webhooks: &Webhooks,
) -> Manager {
    let kubeconfig = service_account_kubeconfig(cluster, account);
    let namespace = account["namespace"].as_str().unwrap();
    let health = free_port();
    let launch = program
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg(format!("--webhook-port={port}"))
        .arg("--webhook-cert-dir")
        .arg(webhooks.files.path())
        .arg(format!("--health-addr=127.0.0.1:{health}"))
        .arg(format!("--diagnostics-address=127.0.0.1:{}", free_port()))
        .args(["--insecure-diagnostics=true", "-v=2"]);
    Manager {
        process: launch.spawn(&webhooks.files.join(&format!("{namespace}.log"))),
        health,
    }
}

/// A kubeconfig that contains a token for the ServiceAccount with this metadata.
#[track_caller]
pub(crate) fn service_account_kubeconfig(cluster: &ControlPlane, account: &Value) -> PathBuf {
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
    cluster.kubeconfig(User::Token(token))
}

/// Whether the readiness probe succeeds. It succeeds only after the webhooks are ready.
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
