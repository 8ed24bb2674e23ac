//! The instances of InfraMachinePools, with or without Machines.

use serde_json::{Value, json};

use super::super::contract::{GENERIC_MACHINE, GENERIC_MACHINE_POOL, MACHINE_POOL};
use super::super::deployment::{HAS_MACHINES, POOL_NAME};
use super::super::place::{Metadata, New};
use super::instances::{Infrastructure, owner};
use super::lock;

impl Infrastructure {
    pub(super) fn look_at_pools(&self) {
        for object in self.objects(GENERIC_MACHINE_POOL) {
            if let Some(pool) = owner(&object, MACHINE_POOL) {
                self.fill(&object, &self.place.get(MACHINE_POOL, pool));
            }
        }
    }

    /// Starts the missing instances of a pool, with the current bootstrap data. Reports all instances of the pool.
    fn fill(&self, object: &Value, pool: &Value) {
        let template = &pool["spec"]["template"]["spec"];
        let Some(secret) = template["bootstrap"]["dataSecretName"].as_str() else {
            return;
        };
        let name = object["metadata"]["name"].as_str().unwrap();
        let replicas = pool["spec"]["replicas"].as_u64().unwrap();
        let instances = (0..replicas).map(|number| format!("{name}-{number}"));
        let has_machines = object["spec"][HAS_MACHINES] == true;
        let ids = if has_machines {
            self.infra_machines(pool, instances)
        } else {
            let version = &template["version"];
            let ids = instances.map(|instance| self.instance(&instance, secret, version));
            ids.collect()
        };
        if object["spec"]["providerIDList"] == json!(ids) && object["status"]["ready"] == true {
            return;
        }
        let patch = json!({ "spec": { "providerIDList": ids } });
        self.place.patch(GENERIC_MACHINE_POOL, name, &patch);
        let mut status = self.place.contract.infrastructure_status();
        status["replicas"] = json!(ids.len());
        // For a pool, Cluster API 1.14 reads the v1beta1 name of the field.
        status["ready"] = json!(true);
        if has_machines {
            status["infrastructureMachineKind"] = json!(GENERIC_MACHINE.kind);
        }
        self.place.patch_status(GENERIC_MACHINE_POOL, name, &status);
    }

    /// Returns the provider ID of this instance, and starts the instance if it is not running.
    fn instance(&self, instance: &str, secret: &str, version: &Value) -> String {
        let id = format!("generic:///{}/{instance}", self.place.namespace);
        if !lock(&self.running).contains_key(instance) {
            self.start(instance, &id, secret, version);
        }
        id
    }

    /// The provider IDs of the pool's InfraMachines that have one. Creates missing InfraMachines, for each of which
    /// Cluster API creates a Machine.
    fn infra_machines(&self, pool: &Value, names: impl Iterator<Item = String>) -> Vec<String> {
        let pool = pool["metadata"]["name"].as_str().unwrap();
        let all = self.objects(GENERIC_MACHINE);
        let mut ids = Vec::new();
        for name in names {
            let mut named = all.iter().filter(|one| one["metadata"]["name"] == *name);
            let Some(machine) = named.next() else {
                let labels = [(POOL_NAME.to_owned(), json!(pool))];
                self.place.create_without_statuses(&[&New {
                    kind: GENERIC_MACHINE,
                    name: &name,
                    // The Machine becomes the controller of this object later.
                    owner: None,
                    metadata: Metadata {
                        labels: labels.into_iter().collect(),
                        ..Metadata::default()
                    },
                    spec: json!({}),
                    status: Value::Null,
                }]);
                continue;
            };
            ids.extend(
                machine["spec"]["providerID"]
                    .as_str()
                    .map(ToOwned::to_owned),
            );
        }
        ids
    }

    /// The Secret that contains the bootstrap data for this machine, or for its pool.
    pub(super) fn secret(&self, object: &Value, machine: &Value) -> Option<String> {
        let bootstrap = match object["metadata"]["labels"][POOL_NAME].as_str() {
            Some(pool) => {
                let pool = self.place.get(MACHINE_POOL, pool);
                pool["spec"]["template"]["spec"]["bootstrap"].clone()
            }
            None => machine["spec"]["bootstrap"].clone(),
        };
        bootstrap["dataSecretName"].as_str().map(ToOwned::to_owned)
    }
}
