//! An infrastructure provider whose machines are processes of the test.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::control_plane::ControlPlane;
use serde_json::{Value, json};

use super::WorkloadCluster;
use super::contract::{GENERIC_MACHINE, MACHINE};
use super::place::Place;

const FINALIZER: &str = "genericmachine.infrastructure.cluster.x-k8s.io";

/// The time between two looks at the InfraMachines.
const LOOK: Duration = Duration::from_millis(200);

/// The order in which a provider does things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The provider ID, then the machine, as Cluster API Provider AWS.
    ProviderIdFirst,
    /// The machine, and the provider ID once its Node is there, as Cluster API's Docker provider.
    NodeFirst,
}

/// A machine to be started.
#[derive(Debug)]
pub struct Boot {
    /// The InfraMachine's name.
    pub name: String,
    /// Its provider ID, which its infrastructure says at once or later.
    pub provider_id: String,
    /// The bootstrap token in its bootstrap data.
    pub token: String,
    /// Its bootstrap data.
    pub data: String,
}

/// Provides for the GenericMachines of one Cluster until it is dropped; its machines end with it.
///
/// A machine is provisioned when it runs and has a provider ID.
#[derive(Debug)]
pub struct Provider {
    /// Ends it when it is dropped.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Machines>>,
}

impl Provider {
    /// Starts to; `boot` starts a machine, which ends when it is dropped.
    pub fn start<M: Send + 'static>(
        cluster: &WorkloadCluster,
        order: Order,
        boot: impl Fn(&Boot) -> M + Send + 'static,
    ) -> Self {
        Self::with(Machines {
            place: cluster.place.clone(),
            workload: cluster.control_plane().clone(),
            order,
            boot: Box::new(move |machine| Box::new(boot(machine))),
            running: BTreeMap::new(),
        })
    }

    /// Does nothing while the Cluster is moved, and then goes on where it is; its machines run on.
    pub fn moved(mut self, moving: impl FnOnce() -> WorkloadCluster) -> (Self, WorkloadCluster) {
        let mut machines = self.end().expect("it runs");
        let cluster = moving();
        machines.place = cluster.place.clone();
        (Self::with(machines), cluster)
    }

    fn with(mut machines: Machines) -> Self {
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                machines.look();
            }
            machines
        });
        Self {
            end: Some(end),
            thread: Some(thread),
        }
    }

    fn end(&mut self) -> Option<Machines> {
        self.end = None;
        match self.thread.take()?.join() {
            Ok(machines) => Some(machines),
            // What it said is on standard error.
            Err(_) if thread::panicking() => None,
            Err(_) => panic!("the infrastructure provider panicked"),
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.end();
    }
}

struct Machines {
    place: Place,
    workload: Arc<ControlPlane>,
    order: Order,
    boot: Box<dyn Fn(&Boot) -> Running + Send>,
    running: BTreeMap<String, Running>,
}

/// A machine of whatever kind.
type Running = Box<dyn Any + Send>;

impl Machines {
    fn look(&mut self) {
        let resource = GENERIC_MACHINE.resource();
        let words = ["get", &resource, "-n", &self.place.namespace];
        let list = self.place.kubectl().json(words);
        for object in list["items"].as_array().into_iter().flatten() {
            let name = object["metadata"]["name"].as_str().unwrap();
            if object["metadata"]["deletionTimestamp"].is_string() {
                drop(self.running.remove(name));
                self.set_finalizers(name, &[]);
            } else {
                self.provide(name, object);
            }
        }
    }

    /// Does the next thing for this machine, if there is one.
    fn provide(&mut self, name: &str, object: &Value) {
        let owners = object["metadata"]["ownerReferences"].as_array();
        let machine = owners
            .into_iter()
            .flatten()
            .find(|owner| owner["kind"] == MACHINE.kind);
        let Some(machine) = machine.and_then(|owner| owner["name"].as_str()) else {
            return;
        };
        if object["metadata"]["finalizers"] != json!([FINALIZER]) {
            return self.set_finalizers(name, &[FINALIZER]);
        }
        let machine = self.place.get(MACHINE, machine);
        let Some(secret) = machine["spec"]["bootstrap"]["dataSecretName"].as_str() else {
            return;
        };
        let uid = object["metadata"]["uid"].as_str().unwrap();
        let provider_id = format!("generic:///{uid}");
        let has_provider_id = object["spec"]["providerID"].is_string();
        let is_turn = match self.order {
            Order::ProviderIdFirst => true,
            Order::NodeFirst => self.has_node(name),
        };
        if !has_provider_id && is_turn {
            let patch = json!({ "spec": { "providerID": provider_id } });
            return self.place.patch(GENERIC_MACHINE, name, &patch);
        }
        if !self.running.contains_key(name) {
            let data = self.bootstrap_data(secret);
            let boot = Boot {
                name: name.to_owned(),
                token: token_of(&data),
                data,
                provider_id,
            };
            self.running.insert(name.to_owned(), (self.boot)(&boot));
            return;
        }
        let is_provisioned = object["status"]["initialization"]["provisioned"] == true;
        if is_provisioned || !has_provider_id {
            return;
        }
        let mut status = self.place.contract.infrastructure_status(true);
        status["addresses"] = json!([{ "type": "Hostname", "address": name }]);
        self.place.patch_status(GENERIC_MACHINE, name, &status);
    }

    fn has_node(&self, name: &str) -> bool {
        let nodes = self.workload.kubectl().json(["get", "nodes"]);
        let mut nodes = nodes["items"].as_array().into_iter().flatten();
        nodes.any(|node| node["metadata"]["name"] == name)
    }

    fn set_finalizers(&self, name: &str, finalizers: &[&str]) {
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        self.place.patch(GENERIC_MACHINE, name, &patch);
    }

    fn bootstrap_data(&self, secret: &str) -> String {
        let words = ["get", "secret", secret, "-n", &self.place.namespace];
        let secret = self.place.kubectl().json(words);
        let data = BASE64_STANDARD
            .decode(secret["data"]["value"].as_str().unwrap())
            .unwrap();
        String::from_utf8(data).unwrap()
    }
}

/// The bootstrap token in the bootstrap data, which kubeadm would find there.
fn token_of(data: &str) -> String {
    let mut words = data.split_whitespace();
    words
        .find(|word| *word == "token:")
        .and_then(|_| words.next())
        .unwrap_or_else(|| panic!("no token in the bootstrap data: {data}"))
        .to_owned()
}
