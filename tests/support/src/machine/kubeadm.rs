//! Nodes on machines on which kubeadm runs as an administrator runs it.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use x509_parser::pem::parse_x509_pem;

use super::builder::public_key_hash;
use super::{Machine, RUNTIME};
use crate::control_plane::{DEADLINE, KUBEADM_API_VERSION, Kubectl, kubelet_configuration};
use crate::process::Scratch;

/// The directory on every machine that contains patches for kubeadm, for callers that cannot pass the kubelet
/// configuration for the machines to kubeadm.
pub const KUBELET_PATCHES: &str = "/usr/share/kubeadm-patches";

/// The preflight checks whose errors kubeadm ignores here. One check requires control groups of version 2. The other
/// checks require a container runtime that responds within 2 seconds, but the test hosts are busy.
pub const IGNORED_PREFLIGHT_ERRORS: [&str; 3] =
    ["SystemVerification", "CRI", "ContainerRuntimeVersion"];

/// The key that encrypts the certificates that control-plane nodes share.
const CERTIFICATE_KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The data with which `kubeadm join` discovers a cluster.
#[derive(Debug, Clone)]
pub(super) struct Discovery {
    pub(super) endpoint: String,
    pub(super) ca_hash: String,
}

impl Discovery {
    /// The discovery section of a JoinConfiguration, with the ConfigMap and this token.
    fn by_token(&self, token: &str) -> Value {
        json!({ "bootstrapToken": {
            "token": token,
            "apiServerEndpoint": self.endpoint,
            "caCertHashes": [self.ca_hash],
        } })
    }
}

/// The role of a joining node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The node runs pods.
    Worker,
    /// The node also runs etcd, an API server and controllers.
    ControlPlane,
}

/// A cluster whose control-plane nodes are machines.
#[derive(Debug)]
pub struct KubeadmCluster {
    discovery: Discovery,
    admin: Kubectl,
    scratch: Scratch,
}

impl KubeadmCluster {
    /// kubectl with kubeadm's `admin.conf`.
    pub fn kubectl(&self) -> &Kubectl {
        &self.admin
    }

    /// The path of kubeadm's `admin.conf`.
    pub fn admin_kubeconfig(&self) -> &Path {
        self.admin.kubeconfig()
    }

    /// The path of the PEM file with the certificate of the cluster's CA.
    pub fn ca_cert_path(&self) -> PathBuf {
        self.scratch.join("ca.crt")
    }

    /// The path of the PEM file with the private key of the cluster's CA.
    pub fn ca_key_path(&self) -> PathBuf {
        self.scratch.join("ca.key")
    }
}

impl Machine {
    /// Makes the machine the first control-plane node of a cluster with `kubeadm init`: its static pods are etcd,
    /// kube-apiserver, kube-controller-manager and kube-scheduler. The cluster has no addons.
    ///
    /// # Panics
    ///
    /// Panics if kubeadm fails. The message includes kubeadm's output and the machine's journal.
    #[track_caller]
    pub fn kubeadm_init(&self) -> KubeadmCluster {
        let file = "/etc/kubernetes/kubeadm-init.yaml";
        let endpoint = format!("{}:6443", self.address());
        self.write(file, 0o600, self.init_configuration(&endpoint));
        self.ok(&["kubeadm", "init", "--config", file, "--upload-certs"]);

        let scratch = Scratch::new("kubeadm");
        let taken = ["admin.conf", "pki/ca.crt", "pki/ca.key"].map(|name| {
            let content = self.read(&format!("/etc/kubernetes/{name}"));
            let content = content.unwrap_or_else(|| panic!("kubeadm leaves no {name}"));
            let name = Path::new(name).file_name().expect("it has a name");
            scratch.write(name.to_str().expect("it is ASCII"), &content);
            content
        });
        let [_, ca, _] = taken;
        let (_, ca) = parse_x509_pem(&ca).expect("it is PEM");
        KubeadmCluster {
            discovery: Discovery {
                endpoint,
                ca_hash: public_key_hash(&ca.contents),
            },
            admin: Kubectl::new(scratch.join("admin.conf"), scratch.path()),
            scratch,
        }
    }

    /// Runs `kubeadm upgrade` with these arguments, without the checks of CoreDNS, which the test clusters do not have.
    ///
    /// # Panics
    ///
    /// Panics if kubeadm fails. The message includes kubeadm's output and the machine's journal.
    #[track_caller]
    pub fn kubeadm_upgrade(&self, words: &[&str]) {
        let ignored = IGNORED_PREFLIGHT_ERRORS.join(",");
        let ignored = format!(
            "--ignore-preflight-errors={ignored},CoreDNSUnsupportedPlugins,CoreDNSMigration"
        );
        self.ok(&[&["kubeadm", "upgrade"], words, &[&ignored]].concat());
    }

    /// Runs `kubeadm join` with a bootstrap token, the hash of the cluster's certificate authority, and additional
    /// flags for the kubelet, as names and values.
    ///
    /// The cluster needs [`ControlPlane::prepare_for_joins`]. Instead of waiting for minutes, kubeadm stops at
    /// [`DEADLINE`].
    ///
    /// [`ControlPlane::prepare_for_joins`]: crate::control_plane::ControlPlane::prepare_for_joins
    #[track_caller]
    pub fn kubeadm_join(&self, token: &str, kubelet_arguments: &[(&str, &str)]) -> Output {
        let discovery = self
            .discovery
            .as_ref()
            .expect("the machine belongs to a cluster");
        let discovery = discovery.by_token(token);
        self.join(&discovery, Role::Worker, kubelet_arguments)
    }

    /// Returns a documented `kubeadm join` command, with this cluster and this token instead of the placeholders. The
    /// command also has the flags that kubeadm needs on the test machines.
    #[track_caller]
    pub fn join_command(&self, documented: &str, token: &str) -> String {
        let discovery = self
            .discovery
            .as_ref()
            .expect("the machine belongs to a cluster");
        let mut command = documented.to_owned();
        for (placeholder, value) in [
            ("api.example.com:6443", &*discovery.endpoint),
            ("TOKEN", token),
            ("sha256:HASH", &*discovery.ca_hash),
        ] {
            assert!(command.contains(placeholder), "{documented}: {placeholder}");
            command = command.replace(placeholder, value);
        }
        let ignored = IGNORED_PREFLIGHT_ERRORS.join(",");
        format!("{command} --cri-socket=unix://{RUNTIME} --ignore-preflight-errors={ignored}")
    }

    /// Like [`Machine::kubeadm_join`], but with the discovery data from this kubeconfig, which does not contain a
    /// credential.
    #[track_caller]
    pub fn kubeadm_join_by_file(
        &self,
        kubeconfig: &str,
        token: &str,
        kubelet_arguments: &[(&str, &str)],
    ) -> Output {
        let file = "/run/discovery.conf";
        self.write(file, 0o644, kubeconfig);
        let discovery = json!({ "file": { "kubeConfigPath": file }, "tlsBootstrapToken": token });
        self.join(&discovery, Role::Worker, kubelet_arguments)
    }

    /// Like [`Machine::kubeadm_join`], but joins a cluster from [`Machine::kubeadm_init`], with this role.
    #[track_caller]
    pub fn kubeadm_join_to(
        &self,
        cluster: &KubeadmCluster,
        role: Role,
        token: &str,
        kubelet_arguments: &[(&str, &str)],
    ) -> Output {
        self.join(&cluster.discovery.by_token(token), role, kubelet_arguments)
    }

    #[track_caller]
    fn join(&self, discovery: &Value, role: Role, kubelet_arguments: &[(&str, &str)]) -> Output {
        let file = "/run/kubeadm-join.json";
        let deadline = format!("{}s", DEADLINE.as_secs());
        let mut configuration = json!({
            "apiVersion": KUBEADM_API_VERSION,
            "kind": "JoinConfiguration",
            "discovery": discovery,
            "nodeRegistration": self.node_registration(kubelet_arguments),
            "timeouts": {
                "discovery": deadline,
                "kubeletHealthCheck": deadline,
                "tlsBootstrap": deadline,
            },
        });
        if role == Role::ControlPlane {
            configuration["controlPlane"] = json!({
                "localAPIEndpoint": { "advertiseAddress": self.address() },
                "certificateKey": CERTIFICATE_KEY,
            });
            // Use the same value as `render kubeadm-config --control-plane`.
            configuration["timeouts"]["kubernetesAPICall"] = "10m0s".into();
        }
        self.write(file, 0o600, configuration.to_string());
        self.run(&["kubeadm", "join", "--config", file])
    }

    fn init_configuration(&self, endpoint: &str) -> String {
        let init = json!({
            "apiVersion": KUBEADM_API_VERSION,
            "kind": "InitConfiguration",
            "localAPIEndpoint": { "advertiseAddress": self.address() },
            "nodeRegistration": self.node_registration(&[]),
            "certificateKey": CERTIFICATE_KEY,
            // No timeouts are set. Some timeouts are in the manifests, and `kubeadm upgrade` would change these
            // manifests.
        });
        let cluster = json!({
            "apiVersion": KUBEADM_API_VERSION,
            "kind": "ClusterConfiguration",
            "controlPlaneEndpoint": endpoint,
            // Without a version, kubeadm would fetch one from the Internet.
            "kubernetesVersion": self.ok(&["kubeadm", "version", "-o", "short"]).trim(),
            // These images do not refer to a program on the machine.
            "dns": { "disabled": true },
            "proxy": { "disabled": true },
        });
        [init, cluster, kubelet_configuration()]
            .map(|document| document.to_string())
            .join("\n---\n")
    }

    fn node_registration(&self, kubelet_arguments: &[(&str, &str)]) -> Value {
        let arguments: Vec<_> = kubelet_arguments
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        json!({
            "name": self.name(),
            "criSocket": format!("unix://{RUNTIME}"),
            "ignorePreflightErrors": IGNORED_PREFLIGHT_ERRORS,
            "kubeletExtraArgs": arguments,
        })
    }
}
