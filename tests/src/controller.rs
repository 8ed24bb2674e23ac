//! A controller under test: its files, its process, the requests to it, and the clusters to which the requests belong.

mod application;
mod bed;
mod identities;
mod instances;
mod real;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_authenticator_test_support::process::{Launch, Process, Scratch};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program;

pub use self::application::{
    Application, certificate_of, is_answered, is_issued, is_signed_by, reason_of, wait_for_csr,
};
pub use self::bed::{Bed, token_of_instance};
pub use self::identities::{define_identities, serve_identities};
pub use self::instances::request;
pub use self::real::{RealBed, conditions};

/// The deadline for operations that take milliseconds. The deadline is long, because the machine can be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A machine in a test's inventory.
///
/// If suites share a cluster, each test has its own machines, and a controller that lists only these machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// The name of the machine and of its Node.
    pub name: &'static str,
    /// The public half of the machine's bootstrap token. Empty if the inventory does not list a token.
    pub token: &'static str,
}

impl Machine {
    /// A machine with this name and with the bootstrap token that has this public half.
    pub const fn new(name: &'static str, token: &'static str) -> Self {
        Self { name, token }
    }

    /// The provider ID of the machine.
    pub fn provider_id(self) -> String {
        format!("test:///{}", self.name)
    }
}

/// The inventory that contains these machines.
pub fn inventory(machines: &[Machine]) -> String {
    let machines: Vec<Value> = machines
        .iter()
        .map(|machine| {
            json!({
                "name": machine.name,
                "providerID": machine.provider_id(),
                "tokenID": (!machine.token.is_empty()).then_some(machine.token),
            })
        })
        .collect();
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineInventory",
        "machines": machines,
    })
    .to_string()
}

/// The name of the cluster that a controller without a management cluster serves.
pub const CLUSTER: &str = "prod-1";

/// The settings for a controller without a management cluster: a `KubeletAuthentication` with this spec, in addition to
/// the name of its cluster.
pub fn settings(spec: &Value) -> String {
    let mut object = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthentication",
        "metadata": {"name": CLUSTER},
        "spec": spec,
    });
    object["spec"]["clusterName"] = CLUSTER.into();
    object.to_string()
}

/// A program that answers requests, and the program's files.
#[derive(Debug)]
pub struct Setup {
    launch: Launch,
    scratch: Arc<Scratch>,
    spec: Value,
}

impl Setup {
    /// Sets up `node-attestation-controller run`, or a program with the same options, for these machines.
    pub fn new(
        program: &Path,
        kubeconfig: &Path,
        (ca_cert, ca_key): (&Path, &Path),
        machines: &[Machine],
    ) -> Self {
        let setup = Self::bare(program, kubeconfig, ca_cert, machines);
        setup.args(&[OsStr::new("--ca-key"), ca_key.as_os_str()])
    }

    /// Sets up `node-attestation-controller run` for these machines, which do not need evidence. The CA key is in an
    /// external signer.
    pub fn with_signer(
        kubeconfig: &Path,
        ca_cert: &Path,
        socket: &Path,
        machines: &[Machine],
    ) -> Self {
        let program = program("node-attestation-controller");
        let endpoint = format!("unix://{}", socket.display());
        let setup = Self::bare(&program, kubeconfig, ca_cert, machines);
        setup
            .args(&["--signer-endpoint", &endpoint])
            .allowing_insecure()
    }

    /// Also allows machines without evidence to join.
    #[must_use]
    pub fn allowing_insecure(self) -> Self {
        self.args(&["--allow-insecure"])
            .spec(&json!({"authorizedAttestors": ["insecure"]}))
    }

    /// Adds these fields to the spec in the controller's settings.
    #[must_use]
    pub fn spec(mut self, fields: &Value) -> Self {
        for (field, value) in fields.as_object().unwrap() {
            self.spec[field] = value.clone();
        }
        self.scratch.write("settings.yaml", settings(&self.spec));
        self
    }

    fn bare(program: &Path, kubeconfig: &Path, ca_cert: &Path, machines: &[Machine]) -> Self {
        let scratch = Scratch::new("controller");
        let launch = Launch::new("controller", program)
            .arg("run")
            .arg("--workload-kubeconfig")
            .arg(kubeconfig)
            .arg("--ca-cert")
            .arg(ca_cert)
            .arg("--settings")
            .arg(scratch.join("settings.yaml"))
            .arg("--inventory")
            .arg(scratch.write("machines.yaml", inventory(machines)))
            .args(["--log-format", "json", "--verbose"]);
        let setup = Self {
            launch,
            scratch: Arc::new(scratch),
            spec: json!({}),
        };
        // Makes the controller also accept the rubber stamp.
        setup.spec(&json!({"authorizedAttestors": ["aws"]}))
    }

    /// Adds arguments to the controller's command line.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: &[A]) -> Self {
        self.launch = self.launch.args(arguments);
        self
    }

    /// Adds a variable to the controller's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.launch = self.launch.env(name, value);
        self
    }

    /// Replaces the inventory.
    pub fn write_inventory(&self, text: &str) {
        // Replace the file in one step, as an editor or a mounted volume does.
        let new = self.scratch.write("machines.new", text);
        std::fs::rename(new, self.scratch.join("machines.yaml")).unwrap();
    }

    /// Starts the controller.
    #[track_caller]
    pub fn start(&self) -> Controller {
        self.start_with(&[])
    }

    /// Starts the controller with additional arguments. The next start does not use these arguments.
    #[track_caller]
    pub fn start_with(&self, arguments: &[&str]) -> Controller {
        let launch = self.launch.clone().args(arguments);
        Controller {
            process: launch.spawn(&self.log()),
            _files: self.scratch.clone(),
        }
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("controller.log")
    }
}

/// A running controller.
#[derive(Debug)]
pub struct Controller {
    /// The process.
    pub process: Process,
    // The controller's files, which must exist while it runs.
    _files: Arc<Scratch>,
}

impl Controller {
    /// Every line of the controller's log since its start.
    pub fn lines(&self) -> Vec<Value> {
        lines(&self.process)
    }

    /// Waits for a line with this message that `matches` accepts, and returns its fields.
    #[track_caller]
    pub fn wait_for_line(&mut self, message: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let what = format!("log {message:?}");
        self.process.poll_alive(&what, PATIENCE, |process| {
            lines(process)
                .into_iter()
                .map(|mut line| line["fields"].take())
                .find(|fields| fields["message"] == message && matches(fields))
        })
    }

    /// Waits for the decision on the request, and returns its log line.
    #[track_caller]
    pub fn wait_for_decision(&mut self, csr: &str) -> Value {
        self.wait_for_line("decided", |fields| fields["csr"] == csr)
    }

    /// Waits until the controller watches requests.
    #[track_caller]
    pub fn wait_until_it_watches(&mut self) {
        self.wait_for_line("watching", |_| true);
    }

    /// Waits until the controller has crashed.
    #[track_caller]
    pub fn wait_until_it_crashed(&mut self) {
        let status = self.process.wait(PATIENCE);
        assert!(!status.success(), "it ended well: {}", self.process.log());
    }

    /// Stops the controller as Kubernetes does, and returns the exit code.
    #[track_caller]
    pub fn stop(mut self) -> Option<i32> {
        self.process.signal(Signal::TERM);
        self.process.wait(PATIENCE).code()
    }
}

fn lines(process: &Process) -> Vec<Value> {
    process
        .log()
        .since(process.log_start())
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}
