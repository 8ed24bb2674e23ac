use std::path::PathBuf;
use std::sync::Arc;

use kubelet_authenticator_test_support::control_plane::{BootstrapToken, ControlPlane};
use serde_json::{Value, json};

use super::MachineBuilder;
use super::contract::{GENERIC_MACHINE_POOL, KUBEADM_CONFIG, MACHINE_POOL};
use super::machine::{kubeadm_config, new_token};
use super::place::{Metadata, New, Place};

/// A builder for a MachinePool with its KubeadmConfig, its only token and its InfraMachinePool.
#[derive(Debug)]
#[must_use = "nothing is created before `create`"]
pub struct PoolBuilder {
    place: Place,
    workload: Arc<ControlPlane>,
    cluster: Value,
    name: String,
    provider_ids: Vec<String>,
    machines: bool,
}

impl PoolBuilder {
    pub(super) fn new(
        place: Place,
        workload: Arc<ControlPlane>,
        cluster: &Value,
        name: &str,
    ) -> Self {
        Self {
            place,
            workload,
            cluster: cluster.clone(),
            name: name.to_owned(),
            provider_ids: Vec::new(),
            machines: false,
        }
    }

    /// Sets the provider IDs of the pool's instances: `spec.providerIDList`.
    pub fn provider_ids(mut self, ids: &[&str]) -> Self {
        self.provider_ids = ids.iter().map(ToString::to_string).collect();
        self
    }

    /// Adds a MachinePool Machine for each instance; [`Pool::machine`] creates them.
    pub fn with_machines(mut self) -> Self {
        self.machines = true;
        self
    }

    /// Creates all objects.
    #[track_caller]
    pub fn create(self) -> Pool {
        let Place {
            contract,
            namespace,
            ..
        } = &self.place;
        let infra_pool = contract.reference(GENERIC_MACHINE_POOL, namespace, &self.name);
        let config = contract.reference(KUBEADM_CONFIG, namespace, &self.name);
        let replicas = self.provider_ids.len();
        let pool = New {
            kind: MACHINE_POOL,
            name: &self.name,
            owner: Some(&self.cluster),
            metadata: Metadata::default(),
            spec: json!({
                "clusterName": self.place.cluster,
                "replicas": replicas,
                "providerIDList": self.provider_ids,
                "template": { "spec": {
                    "clusterName": self.place.cluster,
                    "bootstrap": { "configRef": config },
                    "infrastructureRef": infra_pool,
                } },
            }),
            status: contract.machine_status(),
        };
        let owner = self.place.create_without_statuses(&[&pool]).remove(0);
        let mut status = contract.infrastructure_status();
        status["replicas"] = json!(replicas);
        if self.machines {
            status["infrastructureMachineKind"] = json!("GenericMachine");
        }
        let infra_pool = New {
            kind: GENERIC_MACHINE_POOL,
            name: &self.name,
            owner: Some(&owner),
            metadata: Metadata::default(),
            spec: json!({ "providerIDList": self.provider_ids }),
            status,
        };
        let token = new_token(&self.workload);
        let config = kubeadm_config(
            (&self.place, &self.workload),
            (&owner, &self.name),
            &token,
            None,
        );
        let place = &self.place;
        place.create_without_statuses(&[&infra_pool, &config]);
        // Set the reference only now, as Cluster API does. If the MachinePool referred to a missing KubeadmConfig, the
        // controller would not read the KubeadmConfig again immediately.
        let data = json!({ "bootstrap": { "dataSecretName": self.name } });
        let spec = json!({ "spec": { "template": { "spec": data } } });
        place.patch(MACHINE_POOL, &self.name, &spec);
        place.write_statuses(&[&infra_pool, &config, &pool]);
        Pool {
            place: self.place,
            workload: self.workload,
            name: self.name,
            object: owner,
            token,
        }
    }
}

/// A created MachinePool.
#[derive(Debug)]
pub struct Pool {
    place: Place,
    workload: Arc<ControlPlane>,
    name: String,
    object: Value,
    token: BootstrapToken,
}

impl Pool {
    /// The name of the MachinePool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The token that all instances of the pool share.
    pub fn token(&self) -> &BootstrapToken {
        &self.token
    }

    /// Writes a kubeconfig for the workload cluster that contains the pool's token.
    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.workload.bootstrap_kubeconfig(&self.token)
    }

    /// The current MachinePool.
    #[track_caller]
    pub fn get(&self) -> Value {
        self.place.get(MACHINE_POOL, &self.name)
    }

    /// Replaces the list of the pool's instances.
    #[track_caller]
    pub fn set_provider_ids(&self, ids: &[&str]) {
        let patch = json!({ "spec": { "replicas": ids.len(), "providerIDList": ids } });
        self.place.patch(MACHINE_POOL, &self.name, &patch);
    }

    /// Creates a builder for a MachinePool Machine, which has the label of the pool, but no bootstrap configuration of
    /// its own.
    pub fn machine(&self, name: &str) -> MachineBuilder {
        let place = self.place.clone();
        MachineBuilder::new(place, self.workload.clone(), &self.object, name)
            .of_pool(&self.name, self.token.clone())
    }
}
