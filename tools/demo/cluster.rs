//! The cluster of the demo: in this process, or real.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, User};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{define_identities, serve_identities};
use serde_json::Value;

/// The machines, each with the public half of its bootstrap token.
pub const MACHINES: [(&str, &str); 4] = [
    ("worker-1", "worke1"),
    ("worker-2", "worke2"),
    ("worker-3", "worke3"),
    ("control-plane-1", "contr1"),
];

/// The secret half of every token in the demo.
const TOKEN_SECRET: &str = "0123456789abcdef";

/// The deadline for the arrival of a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// The provider ID of the machine with this name, if the infrastructure does not use instances.
pub fn provider_id(machine: &str) -> String {
    format!("demo:///{machine}")
}

/// The bootstrap token for this machine.
pub fn token(machine: &str) -> String {
    let (_, id) = MACHINES
        .iter()
        .find(|(name, _)| *name == machine)
        .expect("a machine of the demo");
    format!("{id}.{TOKEN_SECRET}")
}

/// The controller's inventory file, with the provider ID of each machine.
pub fn inventory(provider_id: impl Fn(&str) -> String) -> String {
    let mut text = String::from(
        "apiVersion: attestation.cluster.x-k8s.io/v1alpha1\nkind: MachineInventory\nmachines:\n",
    );
    for (name, token) in MACHINES {
        let id = provider_id(name);
        writeln!(
            text,
            "- {{name: {name}, providerID: \"{id}\", tokenID: {token}}}"
        )
        .unwrap();
    }
    text
}

/// A cluster with a bootstrap token for each machine.
pub enum Cluster {
    /// The cluster is an API server in this process.
    Embedded(ApiServer),
    /// Real Kubernetes.
    Real(Box<ControlPlane>),
}

impl Cluster {
    /// Adds the machines' tokens.
    pub fn add_tokens(&self) {
        for (_, id) in MACHINES {
            match self {
                Self::Embedded(server) => server.add_token(id, TOKEN_SECRET),
                Self::Real(plane) => {
                    plane.add_bootstrap_token(id, TOKEN_SECRET);
                }
            }
        }
    }

    /// Makes the API server serve the kind NodeIdentity, whose objects the controller stores in the cluster.
    pub fn define_identities(&self) {
        match self {
            Self::Embedded(server) => serve_identities(server),
            Self::Real(plane) => define_identities(plane.kubectl()),
        }
    }

    /// The API server's URL.
    pub fn server(&self) -> String {
        match self {
            Self::Embedded(server) => server.url(),
            Self::Real(plane) => plane.server().to_owned(),
        }
    }

    /// The cluster's CA certificate.
    pub fn ca_pem(&self) -> String {
        match self {
            Self::Embedded(server) => server.ca_pem().to_owned(),
            Self::Real(plane) => plane.ca().certificate_pem().to_owned(),
        }
    }

    /// The files with the certificate and the key of the cluster's CA.
    pub fn ca_files(&self, folder: &Path) -> (PathBuf, PathBuf) {
        match self {
            Self::Embedded(server) => server.write_ca(folder),
            Self::Real(plane) => (plane.ca_cert_path(), plane.ca_key_path()),
        }
    }

    /// A kubeconfig with all permissions.
    pub fn admin_kubeconfig(&self, folder: &Path) -> PathBuf {
        match self {
            Self::Embedded(server) => server.write_admin_kubeconfig(folder),
            Self::Real(plane) => plane.admin_kubeconfig().to_owned(),
        }
    }

    /// The kubeconfig that a machine uses at boot.
    pub fn bootstrap_kubeconfig(&self, folder: &Path, machine: &str) -> PathBuf {
        match self {
            Self::Embedded(server) => server.write_bootstrap_kubeconfig(folder, &token(machine)),
            Self::Real(plane) => plane.kubeconfig(User::Token(token(machine))),
        }
    }

    /// The input that client-go passes to the plugin.
    pub fn exec_info(&self) -> String {
        const V1: &str = "v1";
        match self {
            Self::Embedded(server) => server.exec_info(V1, true),
            Self::Real(plane) => {
                use base64::prelude::*;
                let ca = BASE64_STANDARD.encode(plane.ca().certificate_pem());
                let cluster = serde_json::json!({
                    "server": plane.server(), "certificate-authority-data": ca, "config": null,
                });
                kubelet_authenticator_test_support::api_server::exec_info(V1, Some(cluster))
            }
        }
    }

    /// All certificate signing requests.
    pub fn csrs(&self) -> Vec<Value> {
        match self {
            Self::Embedded(server) => server.csrs(),
            Self::Real(plane) => plane.csrs(),
        }
    }

    /// The requests for this signer that were sent with this machine's token.
    pub fn requests_of(&self, machine: &str, signer: &str) -> Vec<Value> {
        let token = token(machine);
        let (id, _) = token.split_once('.').expect("a bootstrap token");
        let user = format!("system:bootstrap:{id}");
        let mut csrs = self.csrs();
        csrs.retain(|csr| {
            csr["spec"]["username"] == user.as_str() && csr["spec"]["signerName"] == signer
        });
        csrs
    }

    /// Waits for a request for this signer that was sent with this machine's token, while `going_on` returns true.
    pub fn wait_for_request_of(
        &self,
        machine: &str,
        signer: &str,
        mut going_on: impl FnMut() -> bool,
    ) -> Option<Value> {
        let found = poll(PATIENCE, || {
            // `going_on` is called before the requests are read. Otherwise, a process could send its request and end
            // between the two calls.
            let last = !going_on();
            let csr = self.requests_of(machine, signer).into_iter().next();
            (csr.is_some() || last).then_some(csr)
        });
        found.flatten()
    }
}
