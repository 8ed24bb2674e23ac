use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::{Kubelet, configuration, namespace};
use crate::binaries::control_plane_binary;
use crate::control_plane::{ControlPlane, DEADLINE, Kubectl, unverified};
use crate::pki::KeyAndCertificate;
use crate::process::{HeldAddress, Launch, Process, Scratch, free_port};

/// A builder for a kubelet.
#[derive(Debug)]
#[must_use = "nothing is started before `start`"]
pub struct KubeletBuilder {
    name: String,
    scratch: Scratch,
    admin: Kubectl,
    client: KeyAndCertificate,
    address: Option<HeldAddress>,
    port: u16,
    kubeconfig: Option<PathBuf>,
    bootstrap: Option<PathBuf>,
    configuration: Map<String, Value>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl KubeletBuilder {
    pub(crate) fn new(cluster: &ControlPlane, name: &str) -> Self {
        let scratch = Scratch::new(name);
        let port = free_port();
        let configuration =
            configuration::standard(port, &scratch.join("cri.sock"), &cluster.ca_cert_path());
        Self {
            name: name.to_owned(),
            admin: cluster.kubectl().clone(),
            client: cluster.client_certificate("admin", Some("system:masters")),
            scratch,
            address: None,
            port,
            kubeconfig: None,
            bootstrap: None,
            configuration,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Uses this kubeconfig. If the kubelet has an exec plugin, the credentials come from the plugin, because
    /// certificate rotation is off.
    pub fn kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(path.into());
        self
    }

    /// Uses the kubelet's own TLS bootstrap and certificate rotation.
    pub fn bootstrap_kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.bootstrap = Some(path.into());
        self.configuration("rotateCertificates", json!(true))
    }

    /// Sets a field of the KubeletConfiguration.
    pub fn configuration(mut self, field: &str, value: Value) -> Self {
        self.configuration.insert(field.to_owned(), value);
        self
    }

    /// Sets the duration of the kubelet's Lease. The kubelet renews the Lease four times within this duration.
    pub fn lease_duration(self, seconds: u32) -> Self {
        self.configuration("nodeLeaseDurationSeconds", json!(seconds))
    }

    /// Makes the kubelet request its serving certificate with a certificate signing request.
    ///
    /// Until the request is approved, the kubelet serves neither its own API nor [`Kubelet::metrics`].
    pub fn server_tls_bootstrap(self) -> Self {
        self.configuration("serverTLSBootstrap", json!(true))
    }

    /// Makes the kubelet run pods, whose containers are processes of the host. Otherwise, no container starts, because
    /// the runtime does not see the kubelet's `/var/log`.
    #[track_caller]
    pub fn runs_pods(self) -> Self {
        let logs = self.scratch.directory("pod-logs");
        self.configuration("podLogsDir", json!(logs))
    }

    /// Assigns a separate address to the node. The API server can connect to the node at this address and verify its
    /// certificate. The API server does not connect to nodes on loopback.
    ///
    /// # Panics
    ///
    /// Panics under the same conditions as [`HeldAddress::take`].
    #[track_caller]
    pub fn reachable(mut self) -> Self {
        let address = HeldAddress::take();
        let ip = address.ip().to_string();
        self.address = Some(address);
        self.configuration("address", json!(ip))
            .arg(format!("--node-ip={ip}"))
    }

    /// The node's address after [`KubeletBuilder::reachable`]. Otherwise, a loopback address.
    pub fn ip(&self) -> Ipv4Addr {
        self.address
            .as_ref()
            .map_or(Ipv4Addr::LOCALHOST, HeldAddress::ip)
    }

    /// Adds a flag for the kubelet. The flag overrides the fixture's own flag with the same name.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an environment variable for the kubelet, which its exec plugin inherits. The only other variable is `PATH`,
    /// because a systemd unit does not have `HOME` either.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts the kubelet. The exec plugin, or the TLS bootstrapping, runs some time later.
    ///
    /// # Panics
    ///
    /// Panics if the kubelet has neither a kubeconfig nor a bootstrap kubeconfig, or if a namespace is not available.
    #[track_caller]
    pub fn start(self) -> Kubelet {
        assert!(
            self.kubeconfig.is_some() || self.bootstrap.is_some(),
            "a kubelet needs a kubeconfig or a bootstrap kubeconfig"
        );
        namespace::require();
        let runtime = self.start_runtime();
        let kubeconfig = self
            .kubeconfig
            .clone()
            .unwrap_or_else(|| self.scratch.join("kubelet.kubeconfig"));

        let file = Value::from(self.configuration.clone()).to_string();
        let file = self.scratch.write("kubelet.json", file);
        let mut launch = Launch::new(&self.name, control_plane_binary("kubelet"))
            .arg("--config")
            .arg(file)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--hostname-override", &self.name, "-v=2"]);
        if let Some(bootstrap) = &self.bootstrap {
            launch = launch.arg("--bootstrap-kubeconfig").arg(bootstrap);
        }
        let launch = self
            .environment
            .iter()
            .fold(launch.args(&self.arguments), |launch, (name, value)| {
                launch.env(name, value)
            });
        let address = SocketAddrV4::new(self.ip(), self.port);
        let api = unverified(
            &format!("https://{address}"),
            &self.client,
            &self.scratch.join("kubelet-api.kubeconfig"),
        );
        let wrapper = namespace::enter(&self.scratch);
        let process = launch.spawn_under(&wrapper, &self.scratch.join("kubelet.log"));
        Kubelet {
            process,
            _runtime: runtime,
            name: self.name,
            kubeconfig,
            address,
            _held: self.address,
            admin: self.admin,
            api: Kubectl::new(api, self.scratch.path()),
            scratch: self.scratch,
        }
    }

    #[track_caller]
    fn start_runtime(&self) -> Process {
        let socket = self.scratch.join("cri.sock");
        let mut runtime = Launch::new("fakecri", control_plane_binary("fakecri"))
            .arg("--socket")
            .arg(&socket)
            .spawn(&self.scratch.join("fakecri.log"));
        runtime.poll_alive("listen", DEADLINE, |_| socket.exists().then_some(()));
        runtime
    }
}
