//! A real kubelet, with a container runtime whose containers are processes.
//!
//! The kubelet registers its Node, renews its Lease, reports readiness, and serves its own API. It gets its credentials
//! as every kubelet does: from the exec plugin in the kubeconfig, or with TLS bootstrapping.
//!
//! # Guarantees
//!
//! A kubelet that runs as root changes the machine: sysctls, `/var/lib/kubelet`, `/var/log`, and a mount. This kubelet
//! has a separate mount namespace, in which these files belong to the test. The files survive restarts, and are removed
//! when the [`Kubelet`] is dropped. The machine itself does not change.
//!
//! # Assumptions
//!
//! The test needs root, or a kernel that allows users to create user namespaces. In addition, the machine must have an
//! address other than loopback, or the kubelet must be [reachable](KubeletBuilder::reachable), which requires root.

mod builder;
mod configuration;
mod metrics;
mod namespace;

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

pub use self::builder::KubeletBuilder;
pub use self::metrics::Metrics;
use crate::control_plane::{DEADLINE, Kubectl, Watch, has_condition};
use crate::process::{HeldAddress, Process, Scratch, poll};

/// The time in which a kubelet must terminate before it is killed.
const TERMINATION: Duration = Duration::from_secs(10);

/// The namespace of node Leases. kubectl ignores it for Nodes.
const LEASES: &str = "kube-node-lease";

/// A kubelet. When this value is dropped, the kubelet is killed, and all of its state is removed.
#[derive(Debug)]
pub struct Kubelet {
    // The processes are the first fields, because fields are dropped in order, and the processes write to the
    // directory.
    process: Process,
    _runtime: Process,
    name: String,
    kubeconfig: PathBuf,
    address: SocketAddrV4,
    _held: Option<HeldAddress>,
    admin: Kubectl,
    api: Kubectl,
    scratch: Scratch,
}

impl Kubelet {
    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kubelet's process ID. The kubelet is the parent of its exec plugin.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The path of the kubelet's kubeconfig. With TLS bootstrapping, this is the path of the kubeconfig that the
    /// kubelet writes.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The directory that the kubelet sees as `/var/lib`. It contains `kubelet`, and `kubelet-authenticator` if the
    /// plugin creates that directory.
    pub fn var_lib(&self) -> PathBuf {
        namespace::var_lib(&self.scratch)
    }

    /// Terminates the kubelet as an init system does, and starts it again with the same files.
    #[track_caller]
    pub fn restart(&mut self) {
        self.process.terminate(TERMINATION);
        self.start();
    }

    /// Kills the kubelet. Its state remains.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the kubelet after [`Kubelet::kill`].
    #[track_caller]
    pub fn start(&mut self) {
        self.process = self.process.start_again();
    }

    /// Suspends only the kubelet's process (SIGSTOP).
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Waits until the kubelet's Node is registered, and returns the Node.
    #[track_caller]
    pub fn wait_until_registered(&self) -> Value {
        self.wait_for("nodes", "registered", |_| true)
    }

    /// Waits until the kubelet's Node is ready, and returns the Node.
    #[track_caller]
    pub fn wait_until_ready(&self) -> Value {
        self.wait_for("nodes", "ready", |node| has_condition(node, "Ready"))
    }

    /// Waits until the Node's Lease is renewed after it was first observed, and returns the Lease.
    #[track_caller]
    pub fn wait_for_lease_renewal(&self) -> Value {
        let mut first = None;
        self.wait_for("leases", "renewed", |lease| {
            let renewed = &lease["spec"]["renewTime"];
            first.get_or_insert_with(|| renewed.clone()) != renewed
        })
    }

    /// Watches the Node's Lease. The watch receives an event every quarter of the lease duration.
    pub fn watch_lease(&self) -> Watch {
        let selector = format!("metadata.name={}", self.name);
        self.admin
            .watch(&["leases", "-n", LEASES, "--field-selector", &selector])
    }

    /// The complete output of the kubelet and its exec plugin, since the first start.
    pub fn log(&self) -> String {
        self.process.log().text()
    }

    /// Waits for a line after the last start that contains `needle`. Returns the line.
    #[track_caller]
    pub fn wait_for_log(&mut self, needle: &str) -> String {
        self.process.wait_for_log(needle, DEADLINE)
    }

    /// The address of the kubelet's own API, which is on loopback unless the API server can reach the kubelet.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Reads the kubelet's health through the API server, which verifies all certificates: `kubectl get --raw
    /// /api/v1/nodes/<name>/proxy/healthz`.
    #[track_caller]
    pub fn healthz_through_the_api_server(&self) -> Output {
        let path = format!("/api/v1/nodes/{}/proxy/healthz", self.name);
        self.admin.run(["get", "--raw", &path])
    }

    /// Returns the response of the kubelet's own API to a `GET` request for this path. The request comes from a member
    /// of `system:masters`, with a certificate from the cluster's first CA. The error is from the kubelet.
    pub fn raw(&self, path: &str) -> Result<String, String> {
        self.api.raw(path)
    }

    /// The kubelet's metrics.
    ///
    /// # Panics
    ///
    /// Panics if the kubelet does not serve a certificate within [`DEADLINE`].
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let metrics = poll(DEADLINE, || {
            let text = self.raw("/metrics").ok()?;
            Some(Metrics::new(text.as_bytes()))
        });
        metrics.unwrap_or_else(|| self.fail("served no metrics"))
    }

    /// Waits until the sum of a metric's samples that have all these labels satisfies `condition`. Returns the sum.
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
