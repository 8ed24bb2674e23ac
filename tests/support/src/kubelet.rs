//! A real kubelet over a container runtime that runs nothing.
//!
//! It registers its Node, renews its Lease, reports itself ready, serves its own API, and gets its
//! credentials as every kubelet does: from the kubeconfig's exec plugin, or by its own TLS
//! bootstrap.
//!
//! # Guarantees
//!
//! A kubelet as root would change the machine: sysctls, `/var/lib/kubelet`, `/var/log`, a mount.
//! This one has a mount namespace of its own where those are a test's files; they last until the
//! [`Kubelet`] is dropped, restarts included, and the machine keeps nothing.
//!
//! # Assumptions
//!
//! Root, or a kernel that lets users make user namespaces. The machine has an address other than
//! loopback, or the test sets one with `--node-ip`.

mod configuration;
mod metrics;
mod namespace;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::binaries::control_plane_binary;
use crate::control_plane::{ControlPlane, DEADLINE, Kubectl, Watch, has_condition, unverified};
use crate::process::{Launch, Mark, Process, Scratch, free_port, poll};

pub use self::metrics::Metrics;

/// How long a kubelet that is asked to end may take before it is killed.
const TERMINATION: Duration = Duration::from_secs(10);

/// The namespace of the nodes' Leases; kubectl ignores it for Nodes.
const LEASES: &str = "kube-node-lease";

/// A kubelet to be started.
#[derive(Debug)]
#[must_use = "nothing is started before `start`"]
pub struct KubeletBuilder {
    name: String,
    scratch: Scratch,
    admin: Kubectl,
    api: Kubectl,
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
        let client = cluster.client_certificate("admin", Some("system:masters"));
        let server = format!("https://127.0.0.1:{port}");
        let api = unverified(&server, &client, &scratch.join("kubelet-api.kubeconfig"));
        let configuration =
            configuration::standard(port, &scratch.join("cri.sock"), &cluster.ca_cert_path());
        Self {
            name: name.to_owned(),
            admin: cluster.kubectl().clone(),
            api: Kubectl::new(api, scratch.path()),
            scratch,
            port,
            kubeconfig: None,
            bootstrap: None,
            configuration,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Uses this kubeconfig; an exec plugin in it is what gives credentials, since certificate
    /// rotation is off.
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

    /// How long its Lease is good; it renews four times as often.
    pub fn lease_duration(self, seconds: u32) -> Self {
        self.configuration("nodeLeaseDurationSeconds", json!(seconds))
    }

    /// How often it computes its Node's status.
    pub fn status_update_frequency(self, every: Duration) -> Self {
        self.configuration(
            "nodeStatusUpdateFrequency",
            json!(format!("{}ms", every.as_millis())),
        )
    }

    /// Asks for its serving certificate with a certificate signing request.
    ///
    /// Until that is approved its own API, and with it [`Kubelet::metrics`], is not served.
    pub fn server_tls_bootstrap(self) -> Self {
        self.configuration("serverTLSBootstrap", json!(true))
    }

    /// Adds a flag, after the fixture's own, so that it wins.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an environment variable of the kubelet, which its exec plugin inherits. There are no
    /// others but `PATH`; a unit of systemd has no `HOME` either.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts it. It has run its exec plugin, or bootstrapped, only some time after.
    ///
    /// # Panics
    ///
    /// If it has neither a kubeconfig nor a bootstrap kubeconfig, or cannot have a namespace.
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
        let wrapper = namespace::enter(&self.scratch);
        let process = launch.spawn_under(&wrapper, &self.scratch.join("kubelet.log"));
        Kubelet {
            process,
            _runtime: runtime,
            name: self.name,
            kubeconfig,
            port: self.port,
            admin: self.admin,
            api: self.api,
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

/// A kubelet; killed, and all its state removed, when it is dropped.
#[derive(Debug)]
pub struct Kubelet {
    // Processes first: fields are dropped in order, and they write into the directory.
    process: Process,
    _runtime: Process,
    name: String,
    kubeconfig: PathBuf,
    port: u16,
    admin: Kubectl,
    api: Kubectl,
    scratch: Scratch,
}

impl Kubelet {
    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kubelet's process id, its exec plugin's parent.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The kubeconfig that it uses; with TLS bootstrap, the one that it writes.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What it sees as `/var/lib`: `kubelet`, and `kubelet-authenticator` if its plugin makes that.
    pub fn var_lib(&self) -> PathBuf {
        namespace::var_lib(&self.scratch)
    }

    /// Ends it as an init system does, and starts it again in the same place.
    #[track_caller]
    pub fn restart(&mut self) {
        self.process.terminate(TERMINATION);
        self.start();
    }

    /// Kills it; its state stays.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it after [`Kubelet::kill`].
    #[track_caller]
    pub fn start(&mut self) {
        self.process = self.process.start_again();
    }

    /// Stops it from running on (SIGSTOP), and with it nothing else.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets it run on.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Waits until its Node is registered, and returns that.
    #[track_caller]
    pub fn wait_until_registered(&self) -> Value {
        self.wait_for("nodes", "registered", |_| true)
    }

    /// Waits until its Node is ready, and returns that.
    #[track_caller]
    pub fn wait_until_ready(&self) -> Value {
        self.wait_for("nodes", "ready", |node| has_condition(node, "Ready"))
    }

    /// Waits until its Lease was renewed after it was first seen, and returns that.
    #[track_caller]
    pub fn wait_for_lease_renewal(&self) -> Value {
        let mut first = None;
        self.wait_for("leases", "renewed", |lease| {
            let renewed = &lease["spec"]["renewTime"];
            first.get_or_insert_with(|| renewed.clone()) != renewed
        })
    }

    /// Watches its Lease; events are far between, a lease duration's quarter.
    pub fn watch_lease(&self) -> Watch {
        let selector = format!("metadata.name={}", self.name);
        self.admin
            .watch(&["leases", "-n", LEASES, "--field-selector", &selector])
    }

    /// All that it and its exec plugin have said, since the first start.
    pub fn log(&self) -> String {
        self.process.log().text()
    }

    /// Where its log is.
    pub fn log_path(&self) -> &Path {
        self.process.log().path()
    }

    /// The end of its log as it is now, for [`Kubelet::wait_for_log_after`].
    pub fn log_mark(&self) -> Mark {
        self.process.log().mark()
    }

    /// What was said after `mark`.
    pub fn log_since(&self, mark: Mark) -> String {
        self.process.log().since(mark)
    }

    /// Waits until it says, since its last start, a line that contains `needle`; returns the line.
    #[track_caller]
    pub fn wait_for_log(&mut self, needle: &str) -> String {
        self.process.wait_for_log(needle, DEADLINE)
    }

    /// Waits until it says, after `mark`, a line that contains `needle`; returns the line.
    #[track_caller]
    pub fn wait_for_log_after(&mut self, mark: Mark, needle: &str) -> String {
        self.process.wait_for_log_after(mark, needle, DEADLINE)
    }

    /// The address of its own API, on loopback.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its metrics.
    ///
    /// # Panics
    ///
    /// If it serves none within [`DEADLINE`].
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let metrics = poll(DEADLINE, || {
            let output = self.api.run(["get", "--raw", "/metrics"]);
            output
                .status
                .success()
                .then(|| Metrics::new(&output.stdout))
        });
        metrics.unwrap_or_else(|| self.fail("served no metrics"))
    }

    /// Waits until the sum of a metric's samples that have all these labels satisfies `condition`.
    ///
    /// A metric without such a sample counts as zero.
    #[track_caller]
    pub fn wait_for_metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        condition: impl Fn(f64) -> bool,
    ) -> f64 {
        let mut last = 0.0;
        let reached = poll(DEADLINE, || {
            last = self.metrics().sum(name, labels);
            condition(last).then_some(last)
        });
        reached.unwrap_or_else(|| self.fail(&format!("has {name}{labels:?} = {last}")))
    }

    #[track_caller]
    fn wait_for(&self, resource: &str, what: &str, condition: impl FnMut(&Value) -> bool) -> Value {
        let selector = format!("metadata.name={}", self.name);
        let resource = [resource, "-n", LEASES, "--field-selector", &selector];
        self.admin
            .try_wait_for(&resource, what, DEADLINE, condition)
            .unwrap_or_else(|failure| panic!("{failure}{}", self.process.log()))
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!(
            "kubelet {} {what} after {DEADLINE:?}{}",
            self.name,
            self.process.log()
        )
    }
}
