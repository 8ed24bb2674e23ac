//! An infrastructure provider that runs the test's machines, each with systemd, cloud-init, kubeadm and a kubelet.

mod instances;
mod pools;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use kubelet_authenticator_test_support::machine::Machine;

use self::instances::{Infrastructure, Instances};
use super::WorkloadCluster;
use super::rounds::Rounds;

/// The order of an infrastructure provider's steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The provider ID first, then the machine, as with Cluster API Provider AWS.
    ProviderIdFirst,
    /// The machine first, and the provider ID after its Node exists, as with Cluster API's Docker provider.
    NodeFirst,
    /// The machine runs on one of these hosts (listed by provider ID), as on bare metal. A host has its name and its
    /// provider ID before a Machine exists.
    Hosts(Vec<String>),
    /// Like [`Order::Hosts`], but a host that has run a machine does not run another machine.
    HostsUsedOnce(Vec<String>),
    /// The machine runs on one of these hosts (listed by the prefix of the provider ID). The provider ID is set after
    /// the Node exists, as with Metal3.
    HostsNodeFirst(Vec<String>),
}

/// The parameters of a machine's start.
#[derive(Debug)]
pub struct Boot {
    /// The machine's host name: the name of the InfraMachine, of the instance in its pool, or of the host.
    pub name: String,
    /// The provider ID, which the infrastructure publishes either immediately or later.
    pub provider_id: String,
    /// The machine's bootstrap data.
    pub data: String,
    /// The Kubernetes version of its Machine or pool, with which an infrastructure chooses the image. Machines in a
    /// pool do not have a version.
    pub version: Option<String>,
}

/// A provider for the GenericMachines and GenericMachinePools of one Cluster. The provider and its machines run until
/// this value is dropped.
///
/// A machine counts as provisioned when it runs and has a provider ID.
#[derive(Debug)]
pub struct Provider {
    rounds: Rounds<Infrastructure>,
    running: Arc<Mutex<Instances>>,
}

impl Provider {
    /// Starts the provider. `boot` starts a machine.
    pub fn start(
        cluster: &WorkloadCluster,
        order: Order,
        boot: impl Fn(&Boot) -> Machine + Send + 'static,
    ) -> Self {
        let running = Arc::default();
        let infrastructure = Infrastructure {
            place: cluster.place.clone(),
            workload: cluster.workload.clone(),
            order,
            boot: Box::new(boot),
            running: Arc::clone(&running),
            used: BTreeSet::new(),
        };
        Self {
            rounds: Rounds::start(infrastructure, Infrastructure::look),
            running,
        }
    }

    /// Pauses the provider while `moving` moves the Cluster. The provider then continues in the new management cluster.
    /// The provider's machines continue to run.
    pub fn moved(mut self, moving: impl FnOnce() -> WorkloadCluster) -> (Self, WorkloadCluster) {
        let mut infrastructure = self.rounds.end().expect("it runs");
        let cluster = moving();
        infrastructure.place = cluster.place.clone();
        self.rounds = Rounds::start(infrastructure, Infrastructure::look);
        (self, cluster)
    }

    /// Pauses the provider until the result is dropped, as if its management cluster did not respond. The provider's
    /// machines continue to run.
    pub fn paused(&self) -> MutexGuard<'_, ()> {
        self.rounds.pause()
    }

    /// Calls `act` with the running machine that has this host name.
    ///
    /// # Panics
    ///
    /// Panics if no running machine has this host name.
    #[track_caller]
    pub fn on<R>(&self, name: &str, act: impl FnOnce(&Machine) -> R) -> R {
        let running = lock(&self.running);
        let machine = running.values().find(|machine| machine.name() == name);
        act(machine.unwrap_or_else(|| panic!("no machine {name} is running")))
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.rounds.end();
        if thread::panicking() {
            for machine in lock(&self.running).values() {
                eprintln!("machine {} said:\n{}", machine.name(), machine.journal());
            }
        }
    }
}

/// Locks the machines, even after a panic on another thread, because the machines must stop even then.
fn lock(running: &Mutex<Instances>) -> MutexGuard<'_, Instances> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
