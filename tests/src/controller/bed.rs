//! A test cluster in this process.

use std::path::Path;

use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use serde_json::{Value, json};

use super::{Application, Machine, PATIENCE, Setup, is_answered, serve_identities, wait_for_csr};
use crate::cloud::{Cloud, Instance};
use crate::program;

/// The bootstrap token ID for the machine at this index in [`Bed::instances`].
pub fn token_of_instance(number: usize) -> String {
    format!("to{number:04}")
}

/// An API server, and the files for a controller that serves it.
#[derive(Debug)]
pub struct Bed {
    /// The API server.
    pub server: ApiServer,
    /// The controller's program, arguments and files.
    pub setup: Setup,
    _files: Scratch,
}

impl Bed {
    /// Creates a cluster with `node-attestation-controller`, which accepts these machines without evidence.
    pub fn insecure(machines: &[Machine]) -> Self {
        let mut bed = Self::new("node-attestation-controller", machines);
        bed.setup = bed.setup.allowing_insecure();
        bed
    }

    /// Creates a cluster whose controller accepts the rubber stamp.
    pub fn null(machines: &[Machine]) -> Self {
        Self::new("null-attestation-controller", machines)
    }

    /// Creates a cluster with `node-attestation-controller`, for these instances. The first instance has the bootstrap
    /// token from [`token_of_instance`]`(0)`.
    pub fn instances(cloud: &Cloud, instances: &[Instance]) -> Self {
        let bed = Self::new("node-attestation-controller", &[]);
        let machines = instances.iter().enumerate().map(|(number, instance)| {
            json!({
                "name": format!("machine-{number}"),
                "providerID": instance.provider_id(),
                "tokenID": token_of_instance(number),
            })
        });
        bed.write_machines(machines.collect());
        bed.asking(cloud)
    }

    /// Creates a cluster with `node-attestation-controller`, which finds its instances in this cloud with these AWS
    /// settings.
    pub fn found(cloud: &Cloud, aws: &Value) -> Self {
        let mut bed = Self::new("node-attestation-controller", &[]);
        let inventory = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "MachineInventory",
            "awsInstances": true,
        });
        bed.setup.write_inventory(&inventory.to_string());
        bed.setup = bed.setup.spec(&json!({"aws": aws}));
        bed.asking(cloud)
    }

    /// Replaces the inventory with these machines, in the format of an inventory file.
    pub fn write_machines(&self, machines: Vec<Value>) {
        let inventory = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "MachineInventory",
            "machines": machines,
        });
        self.setup.write_inventory(&inventory.to_string());
    }

    /// Configures the controller to query this cloud about instances.
    fn asking(mut self, cloud: &Cloud) -> Self {
        let setup = self.setup.args(&cloud.arguments_without_fallback());
        let environment = cloud.manager_environment().into_iter();
        self.setup = environment.fold(setup, |setup, (name, value)| setup.env(name, &value));
        self
    }

    fn new(name: &str, machines: &[Machine]) -> Self {
        Self::with(|kubeconfig, ca| Setup::new(&program(name), kubeconfig, ca, machines))
    }

    fn with(setup: impl FnOnce(&Path, (&Path, &Path)) -> Setup) -> Self {
        let server = ApiServer::start();
        serve_identities(&server);
        let files = Scratch::new("cluster");
        let kubeconfig = server.write_admin_kubeconfig(files.path());
        let (ca_cert, ca_key) = server.write_ca(files.path());
        let setup = setup(&kubeconfig, (&ca_cert, &ca_key));
        Self {
            server,
            setup,
            _files: files,
        }
    }

    /// Stores a request with a rubber stamp from this machine in the API server. Returns the request's name.
    pub fn stamped(&self, machine: Machine) -> String {
        Application::null(machine, self.server.ca_pem()).put(&self.server)
    }

    /// Waits until the request has an answer. Returns the request.
    #[track_caller]
    pub fn wait_for_answer(&self, name: &str) -> Value {
        wait_for_csr(&self.server, name, is_answered)
    }

    /// Waits for an Event with this reason on this request. Returns the Event.
    #[track_caller]
    pub fn wait_for_event(&self, name: &str, reason: &str) -> Value {
        poll(PATIENCE, || {
            let mut events = self.server.events().into_iter();
            events.find(|event| event["regarding"]["name"] == name && event["reason"] == reason)
        })
        .unwrap_or_else(|| panic!("no event {reason}: {:#?}", self.server.events()))
    }

    /// The number of reads and writes of this subresource of a request.
    pub fn calls(&self, name: &str, part: &str) -> usize {
        let requests = self.server.requests();
        let calls = requests
            .iter()
            .filter(|it| it.name == name && it.subresource == part);
        calls.count()
    }
}
