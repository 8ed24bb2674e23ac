//! Tests of an outage of the management cluster that lasts one hour.

use std::time::{Duration, Instant};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::machines::{
    CREDENTIAL, Machines, PATIENCE, SITE, Scene, joinable,
};
use kubelet_authenticator_tests::management::MachineDeployment;
use rustix::process::Signal;
use serde_json::{Value, json};

/// The time for which the management cluster is unavailable.
const AWAY: Duration = Duration::from_secs(60 * 60);

/// The lifetime of a certificate, in seconds. The certificate is renewed after 37 to 53 minutes, and expires after the
/// outage.
const SECONDS: u32 = 75 * 60;

/// A Cluster that has two nodes.
struct Nodes {
    scene: Scene,
    deployment: MachineDeployment,
    /// The names of the nodes, each with its stored credential.
    credentials: Vec<(String, Vec<u8>)>,
}

impl Nodes {
    #[track_caller]
    fn join(namespace: &str, machines: Machines) -> Self {
        let scene = Scene::unattended(joinable(namespace), machines);
        scene.attend(&json!({ "certificate": { "expirationSeconds": SECONDS } }));
        let config = scene.config();
        let deployment = scene.cluster.machine_deployment_of("pool-a", 2, config);
        let machines = deployment.wait_until_running(2);
        let credentials = machines.iter().map(|one| {
            let name = scene.wait_for_node_of(one);
            let stored = stored(&scene, &name);
            (name, stored)
        });
        Self {
            credentials: credentials.collect(),
            deployment,
            scene,
        }
    }

    /// Asserts that each kubelet still writes its Lease.
    #[track_caller]
    fn are_up(&self) {
        for (name, _) in &self.credentials {
            let lease = || {
                let words = ["get", "lease", name, "-n", "kube-node-lease"];
                self.scene.plane().kubectl().json(words)["spec"]["renewTime"].clone()
            };
            let before = lease();
            let written = poll(PATIENCE, || (lease() != before).then_some(()));
            assert!(written.is_some(), "the Lease of {name} stays of {before}");
        }
    }

    /// Asserts that each node has requested its next certificate, and has not received it yet.
    #[track_caller]
    fn wait_for_their_next_certificate(&self) {
        let (signer, requests) = (self.scene.signer(), self.scene.client_requests());
        for (name, _) in &self.credentials {
            let user = format!("system:node:{name}");
            let asked = requests
                .iter()
                .any(|csr: &Value| csr["spec"]["username"] == *user);
            assert!(asked, "{name}: {requests:#?}");
            assert_eq!(self.scene.renewals(&signer, name), 0, "{name}");
        }
    }

    /// Waits until each node has stored another certificate, and uses it. Asserts that no request was denied. A node
    /// can have several pending requests, and each of them is answered.
    #[track_caller]
    fn renew(&self) {
        for (name, former) in &self.credentials {
            let renewed = poll(PATIENCE, || {
                (stored(&self.scene, name) != *former).then_some(())
            });
            let requests = || self.scene.client_requests();
            assert!(renewed.is_some(), "{name}: {:#?}", requests());
        }
        self.are_up();
        self.scene.client_requests();
    }

    /// Asserts that another machine joins.
    #[track_caller]
    fn grow(&self) {
        self.deployment.scale(3);
        for machine in self.deployment.wait_until_running(3) {
            self.scene.wait_for_node_of(&machine);
        }
    }
}

/// The credential that this node has stored.
#[track_caller]
fn stored(scene: &Scene, name: &str) -> Vec<u8> {
    let credential = scene.on(name, |machine| machine.read(CREDENTIAL));
    credential.unwrap()
}

#[test]
fn nodes_work_for_an_hour_without_the_management_cluster_and_renew() {
    let instances = Nodes::join("hour-aws", Machines::Ec2(Attestor::AWS));
    let hosts = Nodes::join("hour-tpm", Machines::Tpm(3));
    let all = [&instances, &hosts];
    let apiserver = SITE.management.control_plane().apiserver();

    let paused = all.map(|nodes| nodes.scene.paused());
    apiserver.signal(Signal::STOP);
    let away = Instant::now();
    let returns = poll(2 * AWAY, || (away.elapsed() >= AWAY).then_some(()));
    assert!(returns.is_some());
    for nodes in all {
        nodes.are_up();
        nodes.wait_for_their_next_certificate();
    }
    apiserver.signal(Signal::CONT);
    drop(paused);

    for nodes in all {
        nodes.renew();
        nodes.grow();
    }
}
