//! The instances of InfraMachinePools, for which there are no Machines.

use serde_json::{Value, json};

use super::super::contract::{GENERIC_MACHINE_POOL, MACHINE_POOL};
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

    /// Starts what lacks of a pool's instances, with the bootstrap data of now; and says which there
    /// are.
    fn fill(&self, object: &Value, pool: &Value) {
        let template = &pool["spec"]["template"]["spec"];
        let Some(secret) = template["bootstrap"]["dataSecretName"].as_str() else {
            return;
        };
        let name = object["metadata"]["name"].as_str().unwrap();
        let namespace = &self.place.namespace;
        let mut ids = Vec::new();
        for number in 0..pool["spec"]["replicas"].as_u64().unwrap() {
            let instance = format!("{name}-{number}");
            let id = format!("generic:///{namespace}/{instance}");
            if !lock(&self.running).contains_key(&instance) {
                self.start(&instance, &id, secret);
            }
            ids.push(id);
        }
        if object["spec"]["providerIDList"] == json!(ids) && object["status"]["ready"] == true {
            return;
        }
        let patch = json!({ "spec": { "providerIDList": ids } });
        self.place.patch(GENERIC_MACHINE_POOL, name, &patch);
        let mut status = self.place.contract.infrastructure_status(true);
        status["replicas"] = json!(ids.len());
        // Of a pool, Cluster API 1.14 reads what it was called in v1beta1.
        status["ready"] = json!(true);
        self.place.patch_status(GENERIC_MACHINE_POOL, name, &status);
    }
}
