use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use kubelet_authenticator_test_support::control_plane::{BootstrapToken, ControlPlane};
use serde_json::{Value, json};

use super::contract::{GENERIC_MACHINE, KUBEADM_CONFIG, MACHINE};
use super::place::{Metadata, New, Place};

/// The lifetime of Cluster API's bootstrap tokens.
const TOKEN_TTL: Duration = Duration::from_secs(15 * 60);

/// The secret half of every bootstrap token.
const SECRET: &str = "0123456789abcdef";

/// The number of the next token, so that every token in a test process has a different ID.
static TOKENS: AtomicU32 = AtomicU32::new(0);

/// A builder for a Machine with its KubeadmConfig, its bootstrap token and its InfraMachine.
///
/// By default, the Machine is provisioned, its bootstrap data exists, and its Node has not joined. The Node has the
/// name of the Machine.
#[derive(Debug)]
#[must_use = "nothing is created before `create`"]
pub struct MachineBuilder {
    place: Place,
    workload: Arc<ControlPlane>,
    cluster: Value,
    name: String,
    node_name: Option<String>,
    provider_id: String,
    addresses: Vec<Value>,
    bootstrap: Bootstrap,
    metadata: Metadata,
}

/// A node's first credential.
#[derive(Debug)]
enum Bootstrap {
    /// The Machine has its own KubeadmConfig and its own token.
    Own,
    /// The token of the Machine's pool. The Machine does not refer to a KubeadmConfig.
    Pool(BootstrapToken),
}

impl MachineBuilder {
    pub(super) fn new(
        place: Place,
        workload: Arc<ControlPlane>,
        cluster: &Value,
        name: &str,
    ) -> Self {
        Self {
            provider_id: format!("generic:///{}/{name}", place.cluster),
            place,
            workload,
            cluster: cluster.clone(),
            name: name.to_owned(),
            node_name: None,
            addresses: Vec::new(),
            bootstrap: Bootstrap::Own,
            metadata: Metadata {
                finalizer: Some("machine.cluster.x-k8s.io"),
                ..Metadata::default()
            },
        }
    }

    pub(super) fn of_pool(self, pool: &str, token: BootstrapToken) -> Self {
        Self {
            bootstrap: Bootstrap::Pool(token),
            ..self.label("cluster.x-k8s.io/pool-name", pool)
        }
    }

    /// Sets the provider ID. The default is `generic:<cluster>/<name>`.
    pub fn provider_id(mut self, id: &str) -> Self {
        id.clone_into(&mut self.provider_id);
        self
    }

    /// Sets a Node name that differs from the Machine name, with `nodeRegistration.name` in the KubeadmConfig.
    pub fn node_name(mut self, name: &str) -> Self {
        self.node_name = Some(name.to_owned());
        self
    }

    /// Adds an address that the infrastructure reports: `InternalIP`, `Hostname`, `InternalDNS`, and others.
    pub fn address(mut self, kind: &str, address: impl ToString) -> Self {
        self.addresses
            .push(json!({ "type": kind, "address": address.to_string() }));
        self
    }

    /// Makes the Machine a control-plane Machine.
    pub fn control_plane(self) -> Self {
        self.label("cluster.x-k8s.io/control-plane", "")
    }

    /// Adds a label to the Machine.
    fn label(mut self, key: &str, value: &str) -> Self {
        self.metadata.labels.insert(key.to_owned(), json!(value));
        self
    }

    /// Creates all objects.
    #[track_caller]
    pub fn create(self) -> Machine {
        let Place {
            contract,
            namespace,
            ..
        } = &self.place;
        let infra_machine = contract.reference(GENERIC_MACHINE, namespace, &self.name);
        let data = json!({ "dataSecretName": self.name });
        let bootstrap = match self.bootstrap {
            Bootstrap::Own => {
                json!({ "configRef": contract.reference(KUBEADM_CONFIG, namespace, &self.name) })
            }
            Bootstrap::Pool(_) => data.clone(),
        };
        let spec = json!({
            "clusterName": self.place.cluster,
            "providerID": self.provider_id,
            "bootstrap": bootstrap,
            "infrastructureRef": infra_machine,
        });
        let mut status = contract.machine_status();
        status["addresses"] = json!(self.addresses);
        let machine = New {
            kind: MACHINE,
            name: &self.name,
            owner: Some(&self.cluster),
            metadata: self.metadata.clone(),
            spec,
            status,
        };
        let owner = self.place.create_without_statuses(&[&machine]).remove(0);
        let infra_machine = self.infra_machine(&owner);
        let token = match &self.bootstrap {
            Bootstrap::Pool(token) => {
                self.place.create_without_statuses(&[&infra_machine]);
                self.place.write_statuses(&[&infra_machine, &machine]);
                token.clone()
            }
            Bootstrap::Own => {
                let token = new_token(&self.workload);
                let config = kubeadm_config(
                    (&self.place, &self.workload),
                    (&owner, &self.name),
                    &token,
                    self.node_name.as_deref(),
                );
                let place = &self.place;
                place.create_without_statuses(&[&infra_machine, &config]);
                // Set the reference only now, as Cluster API does. If the Machine referred to a missing
                // KubeadmConfig, the controller would not read the KubeadmConfig again immediately.
                let spec = json!({ "spec": { "bootstrap": data } });
                place.patch(MACHINE, &self.name, &spec);
                place.write_statuses(&[&infra_machine, &config, &machine]);
                token
            }
        };
        Machine {
            node_name: self.node_name.unwrap_or_else(|| self.name.clone()),
            place: self.place,
            workload: self.workload,
            name: self.name,
            provider_id: self.provider_id,
            token,
        }
    }

    fn infra_machine<'a>(&'a self, owner: &'a Value) -> New<'a> {
        let mut status = self.place.contract.infrastructure_status();
        status["addresses"] = json!(self.addresses);
        New {
            kind: GENERIC_MACHINE,
            name: &self.name,
            owner: Some(owner),
            metadata: Metadata::default(),
            spec: json!({ "providerID": self.provider_id }),
            status,
        }
    }
}

/// Creates a token that the workload cluster accepts.
#[track_caller]
pub(super) fn new_token(workload: &ControlPlane) -> BootstrapToken {
    let id = format!("t{:05}", TOKENS.fetch_add(1, Ordering::Relaxed));
    let expiration = now() + TOKEN_TTL;
    let token = workload.write_bootstrap_token(&id, SECRET, Some(expiration));
    workload.wait_for_bootstrap_token(&token);
    token
}

fn now() -> SystemTime {
    kubelet_authenticator_test_support::clock::now()
}

pub(super) fn kubeadm_config<'a>(
    (place, workload): (&Place, &ControlPlane),
    (owner, name): (&'a Value, &'a str),
    token: &BootstrapToken,
    node_name: Option<&str>,
) -> New<'a> {
    let endpoint = workload.server().trim_start_matches("https://");
    let mut join = json!({
        "discovery": {
            "bootstrapToken": { "apiServerEndpoint": endpoint, "token": token.bearer() },
        },
    });
    if let Some(node_name) = node_name {
        join["nodeRegistration"] = json!({ "name": node_name });
    }
    New {
        kind: KUBEADM_CONFIG,
        name,
        owner: Some(owner),
        metadata: Metadata::default(),
        spec: json!({ "joinConfiguration": join }),
        status: place.contract.bootstrap_status(name),
    }
}

/// A created Machine.
#[derive(Debug, Clone)]
pub struct Machine {
    place: Place,
    workload: Arc<ControlPlane>,
    name: String,
    node_name: String,
    provider_id: String,
    token: BootstrapToken,
}

impl Machine {
    /// The name of the Machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the Machine's Node.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The provider ID of the Machine.
    pub fn provider_id(&self) -> &str {
        &self.provider_id
    }

    /// The bootstrap token for the Machine, or for its pool.
    pub fn token(&self) -> &BootstrapToken {
        &self.token
    }

    /// Writes a kubeconfig for the workload cluster that contains the Machine's token.
    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.workload.bootstrap_kubeconfig(&self.token)
    }

    /// The current Machine.
    #[track_caller]
    pub fn get(&self) -> Value {
        self.place.get(MACHINE, &self.name)
    }

    /// Provisions the Machine: sets the provider ID of the InfraMachine, and then the provider ID of the Machine.
    #[track_caller]
    pub fn provision(&mut self, provider_id: &str) {
        let contract = self.place.contract;
        let patch = json!({ "spec": { "providerID": provider_id } });
        self.place.patch(GENERIC_MACHINE, &self.name, &patch);
        self.place.patch_status(
            GENERIC_MACHINE,
            &self.name,
            &contract.infrastructure_status(),
        );
        self.place.patch(MACHINE, &self.name, &patch);
        self.place
            .patch_status(MACHINE, &self.name, &contract.machine_status());
        provider_id.clone_into(&mut self.provider_id);
    }

    /// Replaces the addresses that the infrastructure reports, each with its type.
    #[track_caller]
    pub fn set_addresses(&self, addresses: &[(&str, &str)]) {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|(kind, address)| json!({ "type": kind, "address": address }))
            .collect();
        let status = json!({ "addresses": addresses });
        self.place
            .patch_status(GENERIC_MACHINE, &self.name, &status);
        self.place.patch_status(MACHINE, &self.name, &status);
    }

    /// Deletes the Machine. The Machine's finalizer keeps it, with a deletion timestamp.
    #[track_caller]
    pub fn delete(&self) {
        self.place.delete(MACHINE, &self.name);
    }

    /// Deletes the Machine and all objects that it owns, with or without finalizers.
    #[track_caller]
    pub fn remove(&self) {
        self.place.remove(MACHINE, &self.name);
        self.place.delete(GENERIC_MACHINE, &self.name);
        self.place.delete(KUBEADM_CONFIG, &self.name);
    }
}
