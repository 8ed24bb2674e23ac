//! The machines of InfraMachines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::machine::Machine;
use serde_json::{Value, json};

use super::super::contract::{GENERIC_MACHINE, Kind, MACHINE};
use super::super::place::Place;
use super::{Boot, Order, lock};

const FINALIZER: &str = "genericmachine.infrastructure.cluster.x-k8s.io";

/// The annotation that identifies the host of a machine whose provider ID is set late.
const HOST: &str = "infrastructure.cluster.x-k8s.io/host";

/// The running machines, keyed by the names of their InfraMachines, or of the instances in their pools.
pub(super) type Instances = BTreeMap<String, Machine>;

/// The infrastructure of one Cluster, and the templates for creating more objects.
pub(super) struct Infrastructure {
    pub(super) place: Place,
    pub(super) workload: Option<Arc<ControlPlane>>,
    pub(super) order: Order,
    pub(super) boot: Box<dyn Fn(&Boot) -> Machine + Send>,
    pub(super) running: Arc<Mutex<Instances>>,
    /// The provider IDs that were already assigned to InfraMachines.
    pub(super) used: BTreeSet<String>,
}

impl Infrastructure {
    pub(super) fn look(&mut self) {
        for object in &self.objects(GENERIC_MACHINE) {
            let name = object["metadata"]["name"].as_str().unwrap();
            if object["metadata"]["deletionTimestamp"].is_string() {
                let ended = lock(&self.running).remove(name);
                drop(ended);
                self.set_finalizers(name, &[]);
            } else {
                self.provide(name, object);
            }
        }
        self.look_at_pools();
    }

    /// Makes the next step for this machine, if a step remains.
    fn provide(&mut self, name: &str, object: &Value) {
        let Some(machine) = owner(object, MACHINE) else {
            return;
        };
        if object["metadata"]["finalizers"] != json!([FINALIZER]) {
            return self.set_finalizers(name, &[FINALIZER]);
        }
        let machine = self.place.get(MACHINE, machine);
        let Some(secret) = self.secret(object, &machine) else {
            return;
        };
        let named = object["spec"]["providerID"].as_str();
        let Some(provider_id) = named
            .map(ToOwned::to_owned)
            .or_else(|| self.provider_id(object))
        else {
            return;
        };
        let is_turn = match self.order {
            Order::ProviderIdFirst | Order::Hosts(_) | Order::HostsUsedOnce(_) => true,
            Order::NodeFirst | Order::HostsNodeFirst(_) => self.name_node(name, &provider_id),
        };
        if named.is_none() && is_turn {
            let patch = json!({ "spec": { "providerID": provider_id } });
            self.used.insert(provider_id);
            return self.place.patch(GENERIC_MACHINE, name, &patch);
        }
        if !lock(&self.running).contains_key(name) {
            self.start(name, &provider_id, &secret, &machine["spec"]["version"]);
            return;
        }
        let is_provisioned = object["status"]["initialization"]["provisioned"] == true;
        if is_provisioned || named.is_none() {
            return;
        }
        let mut status = self.place.contract.infrastructure_status();
        let machine = &lock(&self.running)[name];
        status["addresses"] = json!([
            { "type": "Hostname", "address": machine.name() },
            { "type": "InternalIP", "address": machine.address().to_string() },
        ]);
        self.place.patch_status(GENERIC_MACHINE, name, &status);
    }

    /// The future provider ID of this InfraMachine. `None` while no host is free, and until the InfraMachine has a host
    /// annotation.
    fn provider_id(&self, object: &Value) -> Option<String> {
        match &self.order {
            Order::ProviderIdFirst => {
                let uid = object["metadata"]["uid"].as_str().unwrap();
                Some(format!("generic:///{uid}"))
            }
            Order::NodeFirst => {
                let name = object["metadata"]["name"].as_str().unwrap();
                Some(format!("docker:////{name}"))
            }
            Order::Hosts(hosts) => {
                let all = self.objects(GENERIC_MACHINE);
                let is_free =
                    |host: &&String| !all.iter().any(|one| one["spec"]["providerID"] == **host);
                hosts.iter().find(is_free).cloned()
            }
            Order::HostsUsedOnce(hosts) => {
                let is_new = |host: &&String| !self.used.contains(*host);
                hosts.iter().find(is_new).cloned()
            }
            Order::HostsNodeFirst(hosts) => {
                let name = object["metadata"]["name"].as_str().unwrap();
                let noted = |one: &Value| one["metadata"]["annotations"][HOST].clone();
                if let Some(host) = noted(object).as_str() {
                    return Some(format!("{host}{name}"));
                }
                let all = self.objects(GENERIC_MACHINE);
                let is_free = |host: &&String| !all.iter().any(|one| noted(one) == **host);
                let host = hosts.iter().find(is_free)?;
                let patch = json!({ "metadata": { "annotations": { HOST: host } } });
                self.place.patch(GENERIC_MACHINE, name, &patch);
                None
            }
        }
    }

    /// Starts a machine with this bootstrap data and this Kubernetes version.
    pub(super) fn start(&self, name: &str, provider_id: &str, secret: &str, version: &Value) {
        let host = match self.order {
            Order::Hosts(_) | Order::HostsUsedOnce(_) => provider_id.rsplit('/').next().unwrap(),
            Order::ProviderIdFirst | Order::NodeFirst | Order::HostsNodeFirst(_) => name,
        };
        let boot = Boot {
            name: host.to_owned(),
            provider_id: provider_id.to_owned(),
            data: self.place.bootstrap_data(secret),
            version: version.as_str().map(ToOwned::to_owned),
        };
        let machine = (self.boot)(&boot);
        lock(&self.running).insert(name.to_owned(), machine);
    }

    /// Sets the provider ID of the Node with this name. Returns whether the Node exists.
    fn name_node(&self, name: &str, provider_id: &str) -> bool {
        let workload = self.workload.as_ref();
        let kubectl = workload.expect("it is not on machines").kubectl();
        let nodes = kubectl.json(["get", "nodes"]);
        let mut nodes = nodes["items"].as_array().into_iter().flatten();
        let Some(node) = nodes.find(|node| node["metadata"]["name"] == name) else {
            return false;
        };
        if node["spec"]["providerID"].is_null() {
            let patch = json!({ "spec": { "providerID": provider_id } });
            kubectl.patch(&["node", name], &patch);
        }
        true
    }

    pub(super) fn objects(&self, kind: Kind) -> Vec<Value> {
        let words = ["get", &kind.resource(), "-n", &self.place.namespace];
        let mut list = self.place.kubectl().json(words);
        list["items"].as_array_mut().map(std::mem::take).unwrap()
    }

    fn set_finalizers(&self, name: &str, finalizers: &[&str]) {
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        self.place.patch(GENERIC_MACHINE, name, &patch);
    }
}

/// The name of the object's owner that has this kind.
pub(super) fn owner(object: &Value, kind: Kind) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    owners.find(|owner| owner["kind"] == kind.kind)?["name"].as_str()
}
