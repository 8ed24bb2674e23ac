//! The controller that the benchmarks measure.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kubelet_authenticator_tests::controller;
use serde_json::json;

/// The files with which the controller is started, in addition to its machines.
pub struct Files {
    /// A kubeconfig with all permissions.
    pub kubeconfig: PathBuf,
    /// The CA's certificate.
    pub ca_cert: PathBuf,
    /// The CA's key.
    pub ca_key: PathBuf,
}

/// The controller, which stops when this value is dropped.
pub struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The provider ID of the machine with this name.
pub fn provider_id(machine: &str) -> String {
    format!("bench:///{machine}")
}

/// Starts the controller for these machines, each with the public half of its bootstrap token.
pub fn start(
    program: &Path,
    files: &Files,
    machines: &[(String, String)],
    folder: &Path,
) -> Controller {
    let mut inventory = String::from(
        "apiVersion: attestation.cluster.x-k8s.io/v1alpha1\nkind: MachineInventory\nmachines:\n",
    );
    for (name, token) in machines {
        let id = provider_id(name);
        writeln!(
            inventory,
            "- {{name: {name}, providerID: \"{id}\", tokenID: \"{token}\"}}"
        )
        .unwrap();
    }
    let inventory_path = folder.join("machines.yaml");
    std::fs::write(&inventory_path, inventory).unwrap();
    let settings = folder.join("settings.yaml");
    let spec = json!({"authorizedAttestors": ["insecure"]});
    std::fs::write(&settings, controller::settings(&spec)).unwrap();
    let child = Command::new(program)
        .arg("run")
        .arg("--workload-kubeconfig")
        .arg(&files.kubeconfig)
        .arg("--ca-cert")
        .arg(&files.ca_cert)
        .arg("--ca-key")
        .arg(&files.ca_key)
        .arg("--settings")
        .arg(settings)
        .arg("--inventory")
        .arg(inventory_path)
        .arg("--allow-insecure")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Controller(child)
}
