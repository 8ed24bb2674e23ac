//! The real controller, and its log.

use std::path::Path;
use std::time::Duration;

use kubelet_authenticator_test_support::process::{Launch, Process, poll};
use kubelet_authenticator_tests::{controller, program};
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::Cluster;

const PATIENCE: Duration = Duration::from_secs(60);

/// `node-attestation-controller run`, which stops when this value is dropped.
pub struct Controller {
    process: Process,
}

/// One check of a request.
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// The duration of the check.
    pub millis: f64,
}

/// The decision on a request.
pub struct Decision {
    /// The checks, in order.
    pub checks: Vec<Check>,
    /// The outcome.
    pub outcome: String,
    /// The full description.
    pub detail: String,
    /// The total duration of the checks.
    pub millis: f64,
}

impl Controller {
    /// Starts the controller for this cluster and these machines, with this spec in its settings. `told` adds the
    /// provider's options.
    pub fn start(
        cluster: &Cluster,
        folder: &Path,
        machines: &str,
        spec: &Value,
        told: impl FnOnce(Launch) -> Launch,
    ) -> Self {
        cluster.define_identities();
        let inventory = folder.join("machines.yaml");
        std::fs::write(&inventory, machines).unwrap();
        let settings = folder.join("settings.yaml");
        std::fs::write(&settings, controller::settings(spec)).unwrap();
        let (certificate, key) = cluster.ca_files(folder);
        let launch = Launch::new(
            "node-attestation-controller",
            program("node-attestation-controller"),
        )
        .arg("run")
        .arg("--workload-kubeconfig")
        .arg(cluster.admin_kubeconfig(folder))
        .arg("--ca-cert")
        .arg(certificate)
        .arg("--ca-key")
        .arg(key)
        .arg("--settings")
        .arg(settings)
        .arg("--inventory")
        .arg(inventory)
        .args(["--log-format", "json", "-v"]);
        let process = told(launch).spawn(&folder.join("controller.log"));
        Self { process }
    }

    /// Suspends the controller until [`Controller::resume`].
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Resumes the controller.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// The controller's last decision on a request, among the decisions that `matches` selects.
    pub fn decision(&self, matches: impl Fn(&Value) -> bool) -> Decision {
        let log = || self.process.log().text();
        poll(PATIENCE, || find(&log(), &matches))
            .unwrap_or_else(|| panic!("the controller logged no decision; its log:\n{}", log()))
    }
}

fn find(log: &str, matches: &impl Fn(&Value) -> bool) -> Option<Decision> {
    let lines: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let fields = |line: &Value| line["fields"].clone();
    let decided = lines
        .iter()
        .map(fields)
        .rfind(|fields| fields["message"] == "decided" && matches(fields))?;
    let of_it = |fields: &Value| fields["message"] == "checked" && fields["csr"] == decided["csr"];
    let checks = lines.iter().map(fields).filter(of_it).map(|fields| Check {
        name: fields["check"].as_str().unwrap_or_default().to_owned(),
        millis: fields["millis"].as_f64().unwrap_or_default(),
    });
    let text = |field: &str| decided[field].as_str().unwrap_or_default().to_owned();
    Some(Decision {
        checks: checks.collect(),
        outcome: text("outcome"),
        detail: text("detail"),
        millis: decided["millis"].as_f64().unwrap_or_default(),
    })
}
