//! Cluster API objects, in the state in which Cluster API's managers leave them.

use serde_json::{Value, json};

pub const CLUSTER_API: &str = "cluster.x-k8s.io/v1beta2";
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
pub const BOOTSTRAP_GROUP: &str = "bootstrap.cluster.x-k8s.io";
pub const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";

/// An object that belongs to a Cluster, with these additional top-level fields.
pub fn object(
    (api_version, kind): (&str, &str),
    (namespace, cluster, name): (&str, &str, &str),
    fields: Value,
) -> Value {
    let mut object = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {
            "name": name, "namespace": namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": cluster},
        },
    });
    for (key, value) in fields.as_object().cloned().unwrap_or_default() {
        object[key] = value;
    }
    object
}

/// A reference to an object in the same namespace.
pub fn reference(group: &str, kind: &str, name: &str) -> Value {
    json!({"apiGroup": group, "kind": kind, "name": name})
}

/// A provisioned Machine whose Node has not joined.
#[derive(Debug)]
pub struct NewMachine<'a> {
    /// The Cluster's name.
    pub cluster: &'a str,
    /// The name of the Machine, its InfraMachine and its KubeadmConfig.
    pub name: &'a str,
    /// The provider ID of the Machine.
    pub provider_id: &'a str,
    /// The ID of the Machine's bootstrap token.
    pub token: &'a str,
    /// The API server's host and port.
    pub server: &'a str,
}

impl NewMachine<'_> {
    /// The Machine, its InfraMachine and its KubeadmConfig, and the statuses of these objects.
    pub fn objects(&self, namespace: &str) -> ([Value; 3], [Value; 3]) {
        let Self { cluster, name, .. } = *self;
        let infrastructure = format!("{INFRASTRUCTURE}/v1beta2");
        let machine = |fields| object((CLUSTER_API, "Machine"), (namespace, cluster, name), fields);
        let infra_machine = |fields| {
            let kind = (infrastructure.as_str(), "GenericMachine");
            object(kind, (namespace, cluster, name), fields)
        };
        let config = |fields| {
            object(
                (BOOTSTRAP, "KubeadmConfig"),
                (namespace, cluster, name),
                fields,
            )
        };
        let token = format!("{}.0123456789abcdef", self.token);
        let discovery = json!({"bootstrapToken": {
            "apiServerEndpoint": self.server, "token": token,
        }});
        let objects = [
            infra_machine(json!({"spec": {"providerID": self.provider_id}})),
            config(json!({"spec": {"joinConfiguration": {"discovery": discovery}}})),
            // The Machine has bootstrap data, so create the Machine after its KubeadmConfig.
            machine(json!({"spec": {
                "clusterName": cluster,
                "bootstrap": {
                    "configRef": reference(BOOTSTRAP_GROUP, "KubeadmConfig", name),
                    "dataSecretName": name,
                },
                "infrastructureRef": reference(INFRASTRUCTURE, "GenericMachine", name),
                "providerID": self.provider_id,
            }})),
        ];
        let statuses = [
            infra_machine(json!({"status": {"initialization": {"provisioned": true}}})),
            config(json!({"status": {
                "initialization": {"dataSecretCreated": true}, "dataSecretName": name,
            }})),
            machine(json!({"status": {"initialization": {
                "bootstrapDataSecretCreated": true, "infrastructureProvisioned": true,
            }}})),
        ];
        (objects, statuses)
    }
}
