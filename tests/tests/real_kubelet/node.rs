//! A cluster with the controller, and machines that join it.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use base64::prelude::*;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Exec, KubeadmBinding, User};
use kubelet_authenticator_test_support::kubelet::{Kubelet, KubeletBuilder};
pub use kubelet_authenticator_tests::controller::Machine;
use kubelet_authenticator_tests::controller::{Controller, Setup, define_identities};
use kubelet_authenticator_tests::program;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

/// The secret half of every token.
const SECRET: &str = "0123456789abcdef";

/// The metric with which the kubelet counts the plugin's exit codes.
pub const PLUGIN_CALLS: &str = "rest_client_exec_plugin_call_total";

/// A cluster, and the controller that runs next to it while the tests run.
pub struct Cluster {
    /// The cluster.
    pub plane: ControlPlane,
    /// The controller's files.
    pub _setup: Setup,
    /// The controller.
    pub _controller: Mutex<Controller>,
}

impl Cluster {
    /// Starts the controller in this program for a cluster. The controller admits machines without evidence.
    pub fn start(plane: ControlPlane, machines: &[Machine]) -> Self {
        prepare(&plane);
        let setup = controller(&plane, "node-attestation-controller", machines);
        let setup = setup.allowing_insecure();
        let controller = started(&setup);
        Self {
            plane,
            _setup: setup,
            _controller: Mutex::new(controller),
        }
    }
}

/// Permits bootstrap tokens to create requests, as in kubeadm's clusters, but without any automatic approval.
pub fn prepare(plane: &ControlPlane) {
    plane.install_bindings(&[KubeadmBinding::KubeletBootstrap, KubeadmBinding::GetNodes]);
    define_identities(plane.kubectl());
}

/// The setup for a controller of this cluster and these machines.
pub fn controller(plane: &ControlPlane, name: &str, machines: &[Machine]) -> Setup {
    let ca = (&*plane.ca_cert_path(), &*plane.ca_key_path());
    Setup::new(&program(name), plane.admin_kubeconfig(), ca, machines)
}

/// Starts the controller, and waits until its watch is open.
pub fn started(setup: &Setup) -> Controller {
    let mut controller = setup.start();
    controller.wait_until_it_watches();
    controller
}

/// The plugin's configuration on a machine.
pub struct Node<'a> {
    plane: &'a ControlPlane,
    name: &'static str,
    exec: Exec,
}

impl<'a> Node<'a> {
    /// Creates the configuration for a machine that has never joined, with this plugin and its own bootstrap token.
    pub fn new(plane: &'a ControlPlane, plugin: &str, machine: Machine) -> Self {
        let name = machine.name;
        let token = plane.add_bootstrap_token(machine.token, SECRET);
        let bootstrap = plane.kubeconfig(User::Token(token.bearer()));
        let exec = Exec::new(program(plugin))
            .provide_cluster_info()
            .setting("bootstrapKubeconfig", bootstrap.display().to_string())
            .setting("providerID", machine.provider_id());
        Self { plane, name, exec }
    }

    /// Adds the setting with this key.
    #[must_use]
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.exec = self.exec.setting(key, value);
        self
    }

    /// Adds a variable that is not a setting to the plugin's environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.exec = self.exec.env(name, value);
        self
    }

    /// The kubeconfig that runs the plugin.
    pub fn kubeconfig(&self) -> PathBuf {
        self.plane.exec_kubeconfig(self.exec.clone())
    }

    /// Creates a builder for a kubelet that uses this kubeconfig. The kubelet gets the node's name from
    /// `--hostname-override`.
    pub fn kubelet(&self) -> KubeletBuilder {
        self.plane.kubelet(self.name).kubeconfig(self.kubeconfig())
    }

    /// A running kubelet.
    pub fn start(&self) -> Kubelet {
        self.kubelet().start()
    }

    /// The requests for this node name, oldest first.
    pub fn requests(&self) -> Vec<Value> {
        requests_for(self.plane, self.name)
    }
}

/// The requests from the machine with this provider ID, oldest first, both with its token and with its certificate.
pub fn requests_for(plane: &ControlPlane, name: &str) -> Vec<Value> {
    let names = |csr: &Value| {
        let request = BASE64_STANDARD
            .decode(csr["spec"]["request"].as_str().unwrap())
            .unwrap();
        let request = pem::parse_many(request).unwrap();
        let (_, request) = X509CertificationRequest::from_der(request[0].contents()).unwrap();
        let subject = &request.certification_request_info.subject;
        subject
            .iter_common_name()
            .any(|cn| cn.as_str() == Ok(&format!("system:node:{name}")))
    };
    let mut requests: Vec<Value> = plane.csrs().into_iter().filter(names).collect();
    requests.sort_by_key(|csr| {
        csr["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    });
    requests
}

/// The types and reasons of a request's conditions.
pub fn conditions(csr: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let conditions = csr["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    conditions
        .iter()
        .map(|condition| (text(&condition["type"]), text(&condition["reason"])))
        .collect()
}

/// Waits until the plugin has exited with this code, according to the kubelet's metric.
pub fn wait_for_exit_code(kubelet: &Kubelet, code: &str) {
    kubelet.wait_for_metric(PLUGIN_CALLS, &[("code", code)], |calls| calls >= 1.0);
}

/// The age at which a Lease is late: the node monitor would then consider the node lost.
pub const LEASE_GRACE: Duration = Duration::from_secs(40);
