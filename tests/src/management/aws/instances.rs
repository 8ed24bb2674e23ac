//! The machines of a Cluster on AWS.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::moto::{Ec2, Network};
use serde_json::{Value, json};

use super::super::WorkloadCluster;
use super::super::contract::{AWS_MACHINE, InfraCluster, MACHINE};
use super::super::place::Place;
use super::super::rounds::Rounds;
use crate::cloud::{Cloud, Instance, REGION};

const FINALIZER: &str = "awsmachine.infrastructure.cluster.x-k8s.io";

/// The component that creates the instances of AWSMachines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// The manager of Cluster API Provider AWS ([`Capa`](super::super::Capa)).
    Capa,
    /// The test itself. It makes the same writes as the manager, in the same order: finalizer, provider ID, and
    /// readiness. The last write follows the node's request for a certificate, because Cluster API does not publish the
    /// Machine's provider ID earlier.
    Test,
}

/// The instances for one Cluster's AWSMachines. The instances run while the AWSMachines exist, and at most until this
/// value is dropped.
#[derive(Debug)]
pub struct Instances {
    rounds: Rounds<State>,
    running: Arc<Mutex<Running>>,
}

/// The running machines, keyed by the names of their AWSMachines.
type Running = BTreeMap<String, Booted>;

#[derive(Debug)]
struct Booted {
    // This is the first field, so that the machine stops before its metadata service.
    machine: Machine,
    instance: Instance,
    /// The machine's bootstrap token. Empty if the provider's manager creates the instance.
    token: String,
}

impl Instances {
    /// Starts the thread that boots the instances. The arguments of `boot` are an instance and its user data.
    ///
    /// # Panics
    ///
    /// Panics if the Cluster is not on AWS.
    #[track_caller]
    pub fn start(
        cluster: &WorkloadCluster,
        cloud: &Arc<Cloud>,
        maker: Maker,
        boot: impl Fn(&Instance, &str) -> Machine + Send + 'static,
    ) -> Self {
        let InfraCluster::Aws(network) = &cluster.infrastructure else {
            panic!("{} is not on AWS", cluster.name());
        };
        let running = Arc::default();
        let state = State {
            place: cluster.place.clone(),
            workload: cluster.control_plane().clone(),
            network: network.clone(),
            cloud: cloud.clone(),
            maker,
            boot: Box::new(boot),
            running: Arc::clone(&running),
        };
        Self {
            rounds: Rounds::start(state, State::look),
            running,
        }
    }

    /// Calls `act` with the running machine whose node has this name.
    ///
    /// # Panics
    ///
    /// Panics if no running machine has this node name.
    #[track_caller]
    pub fn on<R>(&self, name: &str, act: impl FnOnce(&Machine) -> R) -> R {
        let running = lock(&self.running);
        let mut all = running.values();
        let booted = all.find(|booted| booted.instance.node_name() == name);
        let booted = booted.unwrap_or_else(|| panic!("no instance {name} is running"));
        act(&booted.machine)
    }

    /// Pauses the provider, as [`Provider::paused`](super::super::Provider::paused) does.
    pub fn paused(&self) -> MutexGuard<'_, ()> {
        self.rounds.pause()
    }

    /// Calls `act` with each running instance and its machine. Returns the results.
    pub fn each<R>(&self, mut act: impl FnMut(&Instance, &Machine) -> R) -> Vec<R> {
        let running = lock(&self.running);
        let each = running.values();
        each.map(|booted| act(&booted.instance, &booted.machine))
            .collect()
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.rounds.end();
        if thread::panicking() {
            for Booted { machine, .. } in lock(&self.running).values() {
                eprintln!("instance {} said:\n{}", machine.name(), machine.journal());
            }
        }
    }
}

type Boot = dyn Fn(&Instance, &str) -> Machine + Send;

struct State {
    place: Place,
    workload: Arc<ControlPlane>,
    network: Network,
    cloud: Arc<Cloud>,
    maker: Maker,
    boot: Box<Boot>,
    running: Arc<Mutex<Running>>,
}

impl State {
    fn ec2(&self) -> Ec2 {
        self.cloud.moto().ec2(&self.network.account, REGION)
    }

    fn look(&mut self) {
        let resource = AWS_MACHINE.resource();
        let words = ["get", &resource, "-n", &self.place.namespace];
        let list = self.place.kubectl().json(words);
        let objects = list["items"].as_array().map(Vec::as_slice);
        let objects = objects.unwrap_or_default();
        let (leaving, staying): (Vec<_>, Vec<_>) = objects
            .iter()
            .partition(|object| object["metadata"]["deletionTimestamp"].is_string());
        let is_there = |name: &str| staying.iter().any(|object| name_of(object) == name);
        let gone: Vec<_> = lock(&self.running)
            .extract_if(.., |name, _| !is_there(name))
            .collect();
        // Stopping the machines takes time, so they are dropped without the lock.
        drop(gone);
        for object in staying {
            self.boot(object);
            if self.maker == Maker::Test {
                self.provide(object);
            }
        }
        if self.maker == Maker::Test {
            for object in leaving {
                self.terminate(object);
            }
        }
    }

    /// Starts the machine for an instance that has no machine.
    fn boot(&self, object: &Value) {
        let name = name_of(object);
        let Some(id) = object["spec"]["instanceID"].as_str() else {
            return;
        };
        if lock(&self.running).contains_key(name) {
            return;
        }
        let ec2 = self.ec2();
        let data = match self.maker {
            Maker::Capa => ec2.user_data(id),
            Maker::Test => {
                let (secret, _) = self.data_secret_of(object).unwrap();
                self.place.bootstrap_data(&secret)
            }
        };
        let instance = self.cloud.boot(ec2.instance(id));
        // User data from the provider's manager does not contain the token if the bootstrap data is in Secrets Manager.
        let token = match self.maker {
            Maker::Capa => String::new(),
            Maker::Test => token_of(&data),
        };
        let booted = Booted {
            machine: (self.boot)(&instance, &data),
            instance,
            token,
        };
        lock(&self.running).insert(name.to_owned(), booted);
    }

    /// Makes the next write of Cluster API Provider AWS for this AWSMachine, if the conditions for the write are met.
    fn provide(&self, object: &Value) {
        let name = name_of(object);
        let Some((_, machine)) = self.data_secret_of(object) else {
            return;
        };
        if object["metadata"]["finalizers"] != json!([FINALIZER]) {
            return self.set_finalizers(name, &[FINALIZER]);
        }
        let running = lock(&self.running);
        let Some(Booted {
            instance, token, ..
        }) = running.get(name)
        else {
            return self.launch(name);
        };
        if object["status"]["ready"] == true || !self.has_asked(token) {
            return;
        }
        assert!(
            machine["spec"]["providerID"].is_null(),
            "Cluster API was early: {machine:#}"
        );
        let status = json!({
            "ready": true,
            "instanceState": "running",
            "addresses": [
                { "type": "InternalDNS", "address": instance.ec2.private_dns_name },
                { "type": "InternalIP", "address": instance.ec2.private_ip },
            ],
        });
        self.place.patch_status(AWS_MACHINE, name, &status);
    }

    fn launch(&self, name: &str) {
        let owned = owned(&self.place.cluster);
        let tags = [(owned.as_str(), "owned"), ("Name", name)];
        let ec2 = self.ec2();
        let ec2 = ec2.run_in(&self.network, &tags);
        let provider_id = format!("aws:///{}/{}", ec2.zone, ec2.id);
        let patch = json!({ "spec": { "providerID": provider_id, "instanceID": ec2.id } });
        self.place.patch(AWS_MACHINE, name, &patch);
        let status = json!({ "ready": false, "instanceState": "pending" });
        self.place.patch_status(AWS_MACHINE, name, &status);
    }

    fn terminate(&self, object: &Value) {
        if let Some(id) = object["spec"]["instanceID"].as_str() {
            self.ec2().terminate(id);
        }
        self.set_finalizers(name_of(object), &[]);
    }

    /// The name of the Secret that contains the bootstrap data, and the Machine. `None` until the bootstrap data
    /// exists.
    fn data_secret_of(&self, object: &Value) -> Option<(String, Value)> {
        let mut owners = object["metadata"]["ownerReferences"].as_array()?.iter();
        let owner = owners.find(|owner| owner["kind"] == MACHINE.kind)?;
        let machine = self.place.get(MACHINE, owner["name"].as_str()?);
        let secret = machine["spec"]["bootstrap"]["dataSecretName"].as_str()?;
        Some((secret.to_owned(), machine))
    }

    fn has_asked(&self, token: &str) -> bool {
        let id = token.split('.').next().unwrap_or_default();
        let user = format!("system:bootstrap:{id}");
        let requests = self.workload.csrs();
        requests.iter().any(|csr| csr["spec"]["username"] == *user)
    }

    fn set_finalizers(&self, name: &str, finalizers: &[&str]) {
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        self.place.patch(AWS_MACHINE, name, &patch);
    }
}

/// The tag on the resources that Cluster API Provider AWS creates for a Cluster with this name, in any namespace.
pub fn owned(cluster: &str) -> String {
    format!("sigs.k8s.io/cluster-api-provider-aws/cluster/{cluster}")
}

/// Locks the machines, even after a panic on another thread, because the machines must stop even then.
fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// The bootstrap token in bootstrap data, in the place where kubeadm reads it.
fn token_of(data: &str) -> String {
    let mut words = data.split_whitespace();
    words
        .find(|word| *word == "token:")
        .and_then(|_| words.next())
        .unwrap_or_else(|| panic!("no token in the bootstrap data: {data}"))
        .to_owned()
}
