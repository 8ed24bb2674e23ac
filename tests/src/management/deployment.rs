//! MachineDeployments and MachinePools, for Cluster API's own managers.

use std::time::Duration;

use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::process::poll;
use serde_json::{Value, json};

use super::WorkloadCluster;
use super::contract::{
    GENERIC_MACHINE_POOL, KUBEADM_CONFIG, KUBEADM_CONFIG_TEMPLATE, KUBEADM_CONTROL_PLANE, Kind,
    MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL,
};
use node_attestation_runtime::machine_conditions::NODE_ATTESTED;

use super::place::{CLUSTER_NAME, Metadata, New, Place};

/// The label on the objects of a MachineDeployment.
const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";

/// The label on a MachineDeployment that contains its name in the Cluster's topology.
const TOPOLOGY_NAME: &str = "topology.cluster.x-k8s.io/deployment-name";

/// The label on the objects of a control plane.
const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";

/// The deadline for Machines to reach the phase Running.
pub(super) const RUNNING: Duration = Duration::from_secs(900);

/// A MachineDeployment, or a KubeadmControlPlane, which supports the same operations.
#[derive(Debug)]
pub struct MachineDeployment {
    place: Place,
    kind: Kind,
    name: String,
}

/// The label on the Machines and the InfraMachines of a MachinePool.
pub(super) const POOL_NAME: &str = "cluster.x-k8s.io/pool-name";

/// The field in a GenericMachinePool's spec that makes its provider create InfraMachines.
pub(super) const HAS_MACHINES: &str = "hasMachines";

/// A MachinePool in the management cluster.
#[derive(Debug)]
pub struct MachinePool {
    place: Place,
    name: String,
}

impl WorkloadCluster {
    /// Creates a MachineDeployment and its templates. The machines of the MachineDeployment have this
    /// KubeadmConfigSpec.
    #[track_caller]
    pub fn machine_deployment_of(
        &self,
        name: &str,
        replicas: u32,
        config: Value,
    ) -> MachineDeployment {
        let template = self.infrastructure.machine_template();
        self.machine_deployment_from(name, replicas, config, template)
    }

    /// Like [`machine_deployment_of`](Self::machine_deployment_of), for a Cluster on AWS, with the bootstrap data
    /// in Secrets Manager, which is the default of the AWS provider.
    ///
    /// # Panics
    ///
    /// Panics if the Cluster is not on AWS.
    #[track_caller]
    pub fn machine_deployment_with_secrets_of(
        &self,
        name: &str,
        replicas: u32,
        config: Value,
    ) -> MachineDeployment {
        let (kind, mut spec) = self.infrastructure.machine_template();
        let of_machines = spec["template"]["spec"].as_object_mut().unwrap();
        let skips = of_machines.remove("cloudInit");
        assert!(skips.is_some(), "{} is not on AWS", self.name());
        self.machine_deployment_from(name, replicas, config, (kind, spec))
    }

    #[track_caller]
    fn machine_deployment_from(
        &self,
        name: &str,
        replicas: u32,
        config: Value,
        (infrastructure, of_machines): (Kind, Value),
    ) -> MachineDeployment {
        let place = self.place.clone();
        let name = name.to_owned();
        let create = |kind, spec| place.create_without_statuses(&[&new(kind, &name, spec)]);
        let config = json!({ "template": { "spec": config } });
        create(KUBEADM_CONFIG_TEMPLATE, config);
        create(infrastructure, of_machines);
        let mut spec = template(&place, &name, KUBEADM_CONFIG_TEMPLATE, infrastructure);
        spec["replicas"] = json!(replicas);
        // A rollout waits until this condition is True.
        let gates = json!([{ "conditionType": NODE_ATTESTED }]);
        spec["template"]["spec"]["readinessGates"] = gates;
        create(MACHINE_DEPLOYMENT, spec);
        MachineDeployment {
            place,
            kind: MACHINE_DEPLOYMENT,
            name,
        }
    }

    /// The MachineDeployment that the topology controller creates for this entry in a Cluster's topology.
    #[track_caller]
    pub fn machine_deployment_of_topology(&self, name: &str) -> MachineDeployment {
        let place = self.place.clone();
        let deployments = [&MACHINE_DEPLOYMENT.resource(), "-n", &place.namespace];
        let labels = [(CLUSTER_NAME, self.name()), (TOPOLOGY_NAME, name)];
        let deployment = place
            .kubectl()
            .wait_for(&deployments, name, RUNNING, |one| {
                let has = |(key, value): &(&str, &str)| one["metadata"]["labels"][key] == *value;
                labels.iter().all(has)
            });
        MachineDeployment {
            name: deployment["metadata"]["name"].as_str().unwrap().to_owned(),
            kind: MACHINE_DEPLOYMENT,
            place,
        }
    }

    /// Creates a MachinePool without Machines, and its templates. The instances of the MachinePool have this
    /// KubeadmConfigSpec.
    #[track_caller]
    pub fn machine_pool_of(&self, name: &str, replicas: u32, config: Value) -> MachinePool {
        self.pool_of(name, replicas, config, json!({}))
    }

    /// Like [`machine_pool_of`](Self::machine_pool_of), but with Machines, which Cluster API creates for the pool's
    /// InfraMachines.
    #[track_caller]
    pub fn machine_pool_with_machines_of(
        &self,
        name: &str,
        replicas: u32,
        config: Value,
    ) -> MachinePool {
        self.pool_of(name, replicas, config, json!({ HAS_MACHINES: true }))
    }

    #[track_caller]
    fn pool_of(&self, name: &str, replicas: u32, config: Value, infra: Value) -> MachinePool {
        let place = self.place.clone();
        let name = name.to_owned();
        let create = |kind, spec| place.create_without_statuses(&[&new(kind, &name, spec)]);
        create(KUBEADM_CONFIG, config);
        create(GENERIC_MACHINE_POOL, infra);
        let mut spec = template(&place, &name, KUBEADM_CONFIG, GENERIC_MACHINE_POOL);
        spec["replicas"] = json!(replicas);
        create(MACHINE_POOL, spec);
        MachinePool { place, name }
    }
}

pub(super) fn new(kind: Kind, name: &str, spec: Value) -> New<'_> {
    New {
        kind,
        name,
        owner: None,
        metadata: Metadata::default(),
        spec,
        status: Value::Null,
    }
}

fn template(place: &Place, name: &str, bootstrap: Kind, infrastructure: Kind) -> Value {
    let reference = |kind| place.contract.reference(kind, &place.namespace, name);
    json!({
        "clusterName": place.cluster,
        "template": { "spec": {
            "clusterName": place.cluster,
            "version": place.version,
            "bootstrap": { "configRef": reference(bootstrap) },
            "infrastructureRef": reference(infrastructure),
        } },
    })
}

impl MachineDeployment {
    /// The KubeadmControlPlane with this name, which belongs to the Cluster.
    pub(super) fn of_control_plane(place: Place, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: KUBEADM_CONTROL_PLANE,
            place,
        }
    }

    /// Sets the number of Machines.
    #[track_caller]
    pub fn scale(&self, replicas: u32) {
        let patch = json!({ "spec": { "replicas": replicas } });
        self.place.patch(self.kind, &self.name, &patch);
    }

    /// Replaces each Machine with a new Machine.
    #[track_caller]
    pub fn roll_out(&self) {
        let now = humantime::format_rfc3339_seconds(now()).to_string();
        let patch = json!({ "spec": { "rollout": { "after": now } } });
        self.place.patch(self.kind, &self.name, &patch);
    }

    /// Replaces each Machine with a new Machine that has this Kubernetes version.
    #[track_caller]
    pub fn upgrade(&self, version: &str) {
        let mut spec = json!({ "version": version });
        if self.kind == MACHINE_DEPLOYMENT {
            spec = json!({ "template": { "spec": spec } });
        }
        self.place
            .patch(self.kind, &self.name, &json!({ "spec": spec }));
    }

    /// From now on, uses another MachineDeployment's bootstrap configuration for new Machines.
    #[track_caller]
    pub fn bootstrap_as(&self, other: &Self) {
        let config = json!({ "configRef": { "name": other.name } });
        let template = json!({ "spec": { "bootstrap": config } });
        let patch = json!({ "spec": { "template": template } });
        self.place.patch(self.kind, &self.name, &patch);
    }

    /// Returns the same object in the Cluster's current management cluster.
    pub fn moved_with(self, cluster: &WorkloadCluster) -> Self {
        Self {
            place: cluster.place.clone(),
            ..self
        }
    }

    /// Waits until the object has this number of Machines, and all of them are running. Returns them.
    #[track_caller]
    pub fn wait_until_running(&self, count: usize) -> Vec<Value> {
        self.wait_until_replaced(count, &[])
    }

    /// Waits until the object has this number of Machines, all of them are running, and their names differ from the
    /// given names. Returns them.
    #[track_caller]
    pub fn wait_until_replaced(&self, count: usize, former: &[&str]) -> Vec<Value> {
        let is_as_wanted = |machine: &Value| {
            let name = machine["metadata"]["name"].as_str().unwrap();
            machine["status"]["phase"] == "Running" && !former.contains(&name)
        };
        wait_for_machines(|| self.machines(), count, is_as_wanted)
    }

    /// The bootstrap token of this Machine.
    ///
    /// # Panics
    ///
    /// Panics if the Machine does not have bootstrap data yet.
    #[track_caller]
    pub fn bootstrap_token(&self, machine: &str) -> String {
        let token = self.place.bootstrap_token(machine);
        token.unwrap_or_else(|| panic!("{machine} has no bootstrap data"))
    }

    /// The current Machines of the object.
    #[track_caller]
    pub fn machines(&self) -> Vec<Value> {
        let label = if self.kind == MACHINE_DEPLOYMENT {
            format!("{DEPLOYMENT_NAME}={}", self.name)
        } else {
            CONTROL_PLANE.to_owned()
        };
        self.place.machines(&label)
    }
}

/// Waits until this number of Machines exists, each of which satisfies `is_as_wanted`. Returns them.
#[track_caller]
fn wait_for_machines(
    machines: impl Fn() -> Vec<Value>,
    count: usize,
    is_as_wanted: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let found = poll(RUNNING, || {
        let machines = machines();
        let all = machines.iter().all(&is_as_wanted);
        (all && machines.len() == count).then_some(machines)
    });
    found.unwrap_or_else(|| panic!("not {count} Machines running: {:#}", json!(machines())))
}

impl Place {
    /// The Machines in the Cluster that have this label.
    #[track_caller]
    fn machines(&self, label: &str) -> Vec<Value> {
        let labels = format!("{CLUSTER_NAME}={},{label}", self.cluster);
        let resource = MACHINE.resource();
        let words = ["get", &resource, "-n", &self.namespace, "-l", &labels];
        let list = self.kubectl().json(words);
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// The bootstrap token in the KubeadmConfig with this name, if it exists.
    #[track_caller]
    fn bootstrap_token(&self, config: &str) -> Option<String> {
        let config = self.get(KUBEADM_CONFIG, config);
        let discovery = &config["spec"]["joinConfiguration"]["discovery"];
        let token = discovery["bootstrapToken"]["token"].as_str()?;
        Some(token.to_owned())
    }
}

impl MachinePool {
    /// Sets the number of instances.
    #[track_caller]
    pub fn scale(&self, replicas: u32) {
        let patch = json!({ "spec": { "replicas": replicas } });
        self.place.patch(MACHINE_POOL, &self.name, &patch);
    }

    /// Waits until Cluster API has found this number of the pool's Nodes. Returns their names.
    #[track_caller]
    pub fn wait_until_running(&self, count: usize) -> Vec<String> {
        let found = poll(RUNNING, || {
            let pool = self.get();
            let nodes = pool["status"]["nodeRefs"].as_array()?;
            let name = |node: &Value| node["name"].as_str().unwrap().to_owned();
            (nodes.len() == count).then(|| nodes.iter().map(name).collect())
        });
        found.unwrap_or_else(|| panic!("not {count} Nodes: {:#}", self.get()))
    }

    /// Waits until the pool has this number of Machines, and all of them are running. Returns them.
    #[track_caller]
    pub fn wait_for_machines(&self, count: usize) -> Vec<Value> {
        let label = format!("{POOL_NAME}={}", self.name);
        let is_running = |machine: &Value| machine["status"]["phase"] == "Running";
        wait_for_machines(|| self.place.machines(&label), count, is_running)
    }

    /// The ID of the bootstrap token in the pool's current bootstrap data, if the data exists.
    #[track_caller]
    pub fn token_id(&self) -> Option<String> {
        let token = self.place.bootstrap_token(&self.name)?;
        Some(token.split_once('.')?.0.to_owned())
    }

    /// The current MachinePool.
    #[track_caller]
    pub fn get(&self) -> Value {
        self.place.get(MACHINE_POOL, &self.name)
    }
}
