//! A real Kubernetes cluster with a controller that has only the required permissions.

use std::path::{Path, PathBuf};

use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use serde_json::{Value, json};

use super::{Application, Machine, Setup, certificate_of, define_identities, is_answered};
use crate::program;

/// The controller's user name in the cluster.
const CONTROLLER: &str = "node-attestation-controller";

/// The secret half of every bootstrap token.
const SECRET: &str = "0123456789abcdef";

/// A cluster in which bootstrap tokens can create requests, and only the project's controller answers them.
#[derive(Debug)]
pub struct RealBed {
    /// The cluster.
    pub cluster: ControlPlane,
}

impl RealBed {
    /// Starts a cluster with these Kubernetes controllers, in which the project's controller has its permissions.
    pub fn start(controllers: Controllers) -> Self {
        let cluster = ControlPlane::builder().controllers(controllers).start();
        cluster.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
        define_identities(cluster.kubectl());
        let bed = Self { cluster };
        bed.grant(CONTROLLER, &["approve", "sign"]);
        bed
    }

    /// Grants `user` the controller's permissions, with these verbs for its signers.
    pub fn grant(&self, user: &str, verbs: &[&str]) {
        let rbac = "rbac.authorization.k8s.io";
        let requests = "certificates.k8s.io";
        let subjects = json!([{"apiGroup": rbac, "kind": "User", "name": user}]);
        let signers = [
            Provider::INSECURE.client_signer(),
            Provider::NULL.client_signer(),
            Provider::NULL.serving_signer(),
            Provider::TPM.client_signer(),
            Provider::TPM.serving_signer(),
            BUILT_IN_CLIENT_SIGNER.to_owned(),
            BUILT_IN_SERVING_SIGNER.to_owned(),
        ];
        let role = |kind: &str| json!({"apiGroup": rbac, "kind": kind, "name": user});
        for object in [
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
                "metadata": {"name": user},
                "rules": [
                    {
                        "apiGroups": [requests], "resources": ["certificatesigningrequests"],
                        "verbs": ["get", "list", "watch"],
                    },
                    {
                        "apiGroups": [requests],
                        "resources": [
                            "certificatesigningrequests/approval",
                            "certificatesigningrequests/status",
                        ],
                        "verbs": ["update"],
                    },
                    {
                        "apiGroups": [requests], "resources": ["signers"],
                        "resourceNames": signers, "verbs": verbs,
                    },
                    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "delete"]},
                ],
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
                "metadata": {"name": user},
                "roleRef": role("ClusterRole"), "subjects": subjects,
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "Role",
                "metadata": {"name": user, "namespace": "kube-node-lease"},
                "rules": [{
                    "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "verbs": ["get"],
                }],
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
                "metadata": {"name": user, "namespace": "kube-node-lease"},
                "roleRef": role("Role"), "subjects": subjects,
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "Role",
                "metadata": {"name": user, "namespace": "kube-system"},
                "rules": [
                    {
                        "apiGroups": ["attestation.cluster.x-k8s.io"],
                        "resources": ["nodeidentities"],
                        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
                    },
                    {
                        "apiGroups": ["attestation.cluster.x-k8s.io"],
                        "resources": ["nodeidentities/status"], "verbs": ["patch"],
                    },
                ],
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
                "metadata": {"name": user, "namespace": "kube-system"},
                "roleRef": role("Role"), "subjects": subjects,
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "Role",
                "metadata": {"name": user, "namespace": "default"},
                "rules": [{
                    "apiGroups": ["events.k8s.io"], "resources": ["events"],
                    "verbs": ["create"],
                }],
            }),
            json!({
                "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
                "metadata": {"name": user, "namespace": "default"},
                "roleRef": role("Role"), "subjects": subjects,
            }),
        ] {
            self.cluster.kubectl().apply_object(&object);
        }
    }

    /// Sets up `node-attestation-controller` for these machines.
    pub fn insecure(&self, machines: &[Machine]) -> Setup {
        self.insecure_as(CONTROLLER, machines)
    }

    /// Like [`insecure`](Self::insecure), but with a different user.
    pub fn insecure_as(&self, user: &str, machines: &[Machine]) -> Setup {
        let program = program("node-attestation-controller");
        self.setup(user, &program, machines).allowing_insecure()
    }

    /// Sets up `node-attestation-controller` for machines with TPMs. This directory contains the challenge key.
    pub fn tpm(&self, machines: &[Machine], keys: &Path) -> Setup {
        let program = program("node-attestation-controller");
        let setup = self.setup(CONTROLLER, &program, machines);
        setup
            .args(&[Path::new("--tpm-challenge-keys"), keys])
            .spec(&json!({"authorizedAttestors": ["tpm"]}))
    }

    /// Sets up `node-attestation-controller` for these machines, with a CA whose key is in an external signer.
    pub fn signed_by(&self, socket: &Path, ca_cert: &Path, machines: &[Machine]) -> Setup {
        let kubeconfig = self.cluster.client_cert_kubeconfig(CONTROLLER, None);
        Setup::with_signer(&kubeconfig, ca_cert, socket, machines)
    }

    /// Sets up a controller that accepts the rubber stamp of these machines.
    pub fn null(&self, machines: &[Machine]) -> Setup {
        self.null_as(CONTROLLER, machines)
    }

    /// Sets up a controller that accepts the rubber stamp, and uses a different user.
    pub fn null_as(&self, user: &str, machines: &[Machine]) -> Setup {
        self.setup(user, &program("null-attestation-controller"), machines)
    }

    fn setup(&self, user: &str, program: &Path, machines: &[Machine]) -> Setup {
        let kubeconfig = self.cluster.client_cert_kubeconfig(user, None);
        let ca = (self.cluster.ca_cert_path(), self.cluster.ca_key_path());
        Setup::new(program, &kubeconfig, (&ca.0, &ca.1), machines)
    }

    /// Creates a request with a rubber stamp for this cluster.
    pub fn stamped(&self, machine: Machine) -> Application {
        Application::null(machine, self.cluster.ca().certificate_pem())
    }

    /// Creates the request's token, and then creates the request with this token. Returns its name.
    pub fn file(&self, application: &Application) -> String {
        let token = self
            .cluster
            .add_bootstrap_token(application.token(), SECRET);
        let kubeconfig = self.cluster.bootstrap_kubeconfig(&token);
        self.file_with(&kubeconfig, application)
    }

    /// Creates the request as the user of this kubeconfig. Returns its name.
    pub fn file_with(&self, kubeconfig: &Path, application: &Application) -> String {
        let kubectl = self.cluster.kubectl_with(kubeconfig);
        kubectl.create_object(&application.to_json());
        application.name()
    }

    /// The request with this name.
    pub fn request(&self, name: &str) -> Value {
        let kubectl = self.cluster.kubectl();
        kubectl.json(["get", "certificatesigningrequests", name])
    }

    /// Waits until the request has an answer. Returns the request.
    #[track_caller]
    pub fn wait_for_answer(&self, name: &str) -> Value {
        let what = format!("{name} with an answer");
        self.cluster.wait_for_csr(&what, |csr| {
            csr["metadata"]["name"] == name && is_answered(csr)
        })
    }

    /// A kubeconfig that contains the issued certificate.
    pub fn kubeconfig_of(&self, application: &Application, csr: &Value) -> PathBuf {
        let pair = KeyAndCertificate {
            certificate_pem: certificate_of(csr).expect("a certificate"),
            key_pem: application.key_pem().to_owned(),
        };
        self.cluster.kubeconfig(User::Certificate(pair))
    }

    /// The API server's view of the user of this kubeconfig.
    pub fn who_is(&self, kubeconfig: &Path) -> Value {
        let mut who = self
            .cluster
            .kubectl_with(kubeconfig)
            .json(["auth", "whoami"]);
        who["status"]["userInfo"].take()
    }
}

/// The types of the request's conditions, in order.
pub fn conditions(csr: &Value) -> Vec<&str> {
    let conditions = csr["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .filter_map(|one| one["type"].as_str())
        .collect()
}
