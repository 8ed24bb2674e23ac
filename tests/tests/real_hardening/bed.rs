//! Clusters, the controller's client, and attackers.

use std::path::PathBuf;
use std::process::Output;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, DEADLINE, KubeadmBinding, Kubectl, User,
};
use kubelet_authenticator_test_support::pki::{Contents, Subject, certificate_request};
use kubelet_authenticator_test_support::process::poll;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::workload_access;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The name of the controller's service account, and its namespace.
const ACCOUNT: &str = "node-attestation-controller";
const NAMESPACE: &str = "node-attestation-system";

pub const SECRET: &str = "0123456789abcdef";
pub const BUILT_IN: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const OURS: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-aws";

/// A cluster in the state after `kubeadm init`, without hardening.
pub static STOCK: LazyLock<Bed> =
    LazyLock::new(|| Bed::start(Controllers::Certificates, &KubeadmBinding::ALL));

/// A cluster, and the controller's access to it.
pub struct Bed {
    pub cluster: ControlPlane,
    runtime: Runtime,
    client: Client,
}

impl Bed {
    pub fn start(controllers: Controllers, bindings: &[KubeadmBinding]) -> Self {
        let builder = ControlPlane::builder().controllers(controllers);
        // At this log level, kube-controller-manager logs requests that it does not approve.
        let cluster = builder.controller_manager_arg("--v=4").start();
        cluster.install_bindings(bindings);
        // Grant the permissions in the manifest to a service account.
        cluster.kubectl().apply(&workload_access::rights(true));
        let runtime = Runtime::new().unwrap();
        let token = cluster.service_account_token(NAMESPACE, ACCOUNT, "720h");
        let controller = cluster.kubeconfig(User::Token(token));
        let access = runtime.block_on(ClusterAccess::from_kubeconfig(&controller));
        let client = access.unwrap().client().clone();
        Self {
            cluster,
            runtime,
            client,
        }
    }

    /// The controller's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs a part of the controller's work repeatedly, until it is complete.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// kubectl that uses a new bootstrap token.
    pub fn token_holder(&self, id: &str) -> Kubectl {
        let token = self.cluster.add_bootstrap_token(id, SECRET);
        self.cluster
            .kubectl_with(self.cluster.bootstrap_kubeconfig(&token))
    }

    /// kubectl that uses a node's certificate.
    pub fn node(&self, name: &str) -> Kubectl {
        let name = format!("system:node:{name}");
        let kubeconfig: PathBuf = self
            .cluster
            .client_cert_kubeconfig(&name, Some("system:nodes"));
        self.cluster.kubectl_with(kubeconfig)
    }

    /// A kubeconfig with a certificate for a node that has this UID.
    pub fn node_kubeconfig(&self, name: &str, uid: &str) -> PathBuf {
        let contents = Contents::client(Subject::node(name).with_uid(uid));
        let pair = self.cluster.ca().issue(&contents);
        self.cluster.kubeconfig(User::Certificate(pair))
    }

    /// kubectl with this kubeconfig.
    pub fn node_with_uid(&self, name: &str, uid: &str) -> Kubectl {
        self.cluster.kubectl_with(self.node_kubeconfig(name, uid))
    }

    /// Waits until the admission policy is effective, or is no longer effective. The API server receives policies with
    /// a separate watch.
    #[track_caller]
    pub fn wait_until_confined(&self, is_confined: bool) {
        let probe = self.node("probe");
        let request = Request {
            signer: "example.com/probe",
            ..Request::ours("probe", "probe")
        };
        let reached = poll(DEADLINE, || {
            let refused = said(&request.file(&probe)).contains("denied request");
            (refused == is_confined).then_some(())
        });
        assert!(
            reached.is_some(),
            "the policy in force: never {is_confined}"
        );
    }

    /// Waits until the request has a certificate.
    #[track_caller]
    pub fn wait_until_issued(&self, name: &str) -> Value {
        let what = format!("{name} with a certificate");
        self.cluster.wait_for_csr(&what, |csr| {
            csr["metadata"]["name"] == name && csr["status"]["certificate"].is_string()
        })
    }

    /// The request with this name.
    pub fn request(&self, name: &str) -> Value {
        let kubectl = self.cluster.kubectl();
        kubectl.json(["get", "certificatesigningrequests", name])
    }

    /// Creates a ClusterRoleBinding as an administrator.
    pub fn bind(&self, name: &str, role: &str, kind: &str, subject: &str) {
        let rbac = "rbac.authorization.k8s.io";
        self.cluster.kubectl().apply_object(&json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": kind, "name": subject}],
        }));
    }

    /// Removes a ClusterRoleBinding.
    pub fn unbind(&self, name: &str) {
        self.cluster
            .kubectl()
            .ok(["delete", "clusterrolebinding", name]);
    }
}

/// A certificate signing request under construction.
pub struct Request<'a> {
    pub name: &'a str,
    pub signer: &'a str,
    pub node: &'a str,
}

impl<'a> Request<'a> {
    /// A request in the format of the plugin's requests.
    pub fn ours(name: &'a str, node: &'a str) -> Self {
        Self {
            name,
            signer: OURS,
            node,
        }
    }

    /// A request in the format of a stock kubelet's requests.
    pub fn built_in(name: &'a str, node: &'a str) -> Self {
        Self {
            signer: BUILT_IN,
            ..Self::ours(name, node)
        }
    }

    /// The request, padded to this length with data that the API server ignores.
    fn to_json(&self, length: Option<usize>) -> Value {
        let (mut pem, _) = certificate_request(&Subject::node(self.node), None);
        let missing = length.map_or(0, |length| length - pem.len());
        pem.extend(std::iter::repeat_n('x', missing));
        let usage = if self.signer.contains("kubelet-serving") {
            "server auth"
        } else {
            "client auth"
        };
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": self.name},
            "spec": {
                "signerName": self.signer,
                "usages": ["digital signature", usage],
                "request": STANDARD.encode(pem),
            },
        })
    }

    /// Creates the object. Returns the API server's response.
    pub fn file(&self, attacker: &Kubectl) -> Output {
        self.file_of(attacker, None)
    }

    /// Creates the object, padded to this length.
    pub fn file_of(&self, attacker: &Kubectl, length: Option<usize>) -> Output {
        create(attacker, &self.to_json(length))
    }

    /// Creates the object with this field in its metadata.
    pub fn file_with(&self, attacker: &Kubectl, field: &str, value: Value) -> Output {
        let mut request = self.to_json(None);
        request["metadata"][field] = value;
        create(attacker, &request)
    }
}

fn create(attacker: &Kubectl, object: &Value) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("request.json");
    std::fs::write(&file, object.to_string()).unwrap();
    attacker.run(["create", "-f", file.to_str().unwrap()])
}

/// The message that a user receives.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[track_caller]
pub fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

/// Asserts that the admission policy rejected the request with a message that contains this text.
#[track_caller]
pub fn assert_refused(output: &Output, words: &str) {
    let said = said(output);
    assert!(
        !output.status.success(),
        "was allowed; {words} was expected"
    );
    assert!(
        said.contains("(Forbidden)") || said.contains("is forbidden"),
        "{said}"
    );
    assert!(said.contains(words), "{said}");
}
