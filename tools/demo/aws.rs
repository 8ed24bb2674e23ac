//! The demo with instances that prove their identity.

mod attacks;

use std::path::Path;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Verb};
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers};
use kubelet_authenticator_tests::cloud::{Cloud, Instance};
use serde_json::json;

use self::attacks::{ATTACKS, Attack};
use crate::attacker::{self, Attacker};
use crate::attacks::{JOINED, LEAKED};
use crate::cluster::{self, Cluster};
use crate::controller::Controller;
use crate::plugin::Plugin;
use crate::story;

const START: Duration = Duration::from_secs(60);

/// The signer of instances.
pub const AWS: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-aws";

/// The machine whose plugin is killed.
const KILLED: &str = "worker-3";

/// The machine that runs a real kubelet.
const KUBELET: &str = "control-plane-1";

/// The cluster, its cloud, and the attacker.
pub struct World {
    cluster: Cluster,
    cloud: Cloud,
    /// The instances, each with its machine name. The API server has a bootstrap token for each machine.
    instances: Vec<(&'static str, Instance)>,
    /// The attacker's instance in the same account, which is not a machine of the cluster.
    own: Instance,
}

impl World {
    fn new(cluster: Cluster) -> Self {
        cluster.add_tokens();
        let cloud = Cloud::start();
        let launched = cloud.launch_many(cluster::MACHINES.len(), &[("cluster", "demo")]);
        let names = cluster::MACHINES.iter().map(|(name, _)| *name);
        Self {
            instances: names.zip(launched).collect(),
            own: cloud.launch(&[]),
            cluster,
            cloud,
        }
    }

    /// The instance of this machine.
    fn instance(&self, machine: &str) -> &Instance {
        let mut instances = self.instances.iter();
        let found = instances.find(|(name, _)| *name == machine);
        &found.expect("a machine of the demo").1
    }

    fn plugin(&self, folder: &Path, machine: &str) -> Plugin {
        let own = self.instance(machine).plugin_settings(&self.cloud);
        let program = "kubelet-authenticator-aws";
        Plugin::new(&self.cluster, folder, machine, program, own)
    }

    fn controller(&self, folder: &Path) -> Controller {
        let machines = cluster::inventory(|machine| self.instance(machine).provider_id());
        let spec = json!({
            "authorizedAttestors": ["aws"],
            "aws": {"requiredTags": {"cluster": "demo"}},
        });
        Controller::start(&self.cluster, folder, &machines, &spec, |launch| {
            let launch = launch.args(self.cloud.arguments_without_fallback());
            let environment = self.cloud.manager_environment();
            environment
                .into_iter()
                .fold(launch, |launch, (name, value)| launch.env(name, value))
        })
    }

    /// The numbers of calls to STS and EC2 so far.
    fn asked(&self) -> (usize, usize) {
        let sts = self.cloud.sts().calls().len();
        (sts, self.cloud.moto().count("DescribeInstances"))
    }

    fn introduce(&self) {
        println!("  {:<16} {:<20} node", "machine", "instance");
        for (machine, instance) in &self.instances {
            let node = instance.node_name();
            println!("  {machine:<16} {:<20} {node}", instance.ec2.id);
        }
        println!("  {:<16} {}", "the attacker's", self.own.ec2.id);
    }
}

/// Runs the demo on an API server in this process. Returns `false` if a step has an unexpected result.
pub fn embedded() -> bool {
    let folder = tempfile::tempdir().unwrap();
    println!("An API server, STS and instance metadata in this process, EC2 by moto server;");
    println!("the real controller, the real plugin.");
    let world = World::new(Cluster::Embedded(ApiServer::start()));
    world.introduce();
    let controller = world.controller(folder.path());
    if let Cluster::Embedded(server) = &world.cluster {
        server.wait_for_request(Verb::Watch, 1, START);
    }
    tell(&world, &controller, folder.path())
}

/// Runs the demo with a real control plane. Returns `false` if a step has an unexpected result.
pub fn real() -> bool {
    let folder = tempfile::tempdir().unwrap();
    println!("Real etcd, kube-apiserver, kube-controller-manager and kubelet; STS and instance");
    println!("metadata in this process, EC2 by moto server.");
    let plane = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start();
    plane.install_kubeadm_bindings();
    let world = World::new(Cluster::Real(Box::new(plane)));
    world.introduce();
    let Cluster::Real(plane) = &world.cluster else {
        return false;
    };
    let closed = story::stock_and_closed(&world.cluster, plane);
    let controller = world.controller(folder.path());
    let told = tell(&world, &controller, folder.path());
    let node = world.instance(KUBELET).node_name();
    story::kubelet(plane, node, &world.plugin(folder.path(), KUBELET));
    closed && told
}

fn tell(world: &World, controller: &Controller, folder: &Path) -> bool {
    let cluster = &world.cluster;
    let join = |machine| {
        let plugin = world.plugin(folder, machine);
        story::join(cluster, controller, machine, AWS, &plugin)
    };
    let first = join(JOINED);
    println!(
        "  metadata    gave {} session token and answered {} reads",
        world.instance(JOINED).imds.tokens(),
        world.instance(JOINED).imds.reads()
    );
    let (sts, ec2) = world.asked();
    println!("  controller  calls to STS: {sts}, calls to EC2: {ec2}");
    let victim = join(LEAKED);
    let plugin = world.plugin(folder, KILLED);
    let resumed = story::killed_in_the_middle(cluster, controller, KILLED, AWS, &plugin);
    let refused = attacks(world, controller, &victim.1);
    first.0 && victim.0 && resumed && refused
}

/// Runs the attacks. Returns whether the intended check refused each attack.
fn attacks(world: &World, controller: &Controller, victim: &str) -> bool {
    println!("\n== Attacks ==");
    println!(
        "  an attacker holds the bootstrap token of {LEAKED}, reads every request, has another"
    );
    println!("  instance in the account, and tries:");
    let attacker = Attacker::holding(&world.cluster, LEAKED);
    let mut rows = Vec::new();
    let mut as_expected = true;
    for attack in &ATTACKS {
        println!("  {}", attack.what);
        let before = world.asked();
        let verdict = attack.on(world, &attacker, victim);
        let after = world.asked();
        let logged = |reason: &str| controller.decision(|fields| fields["reason"] == reason);
        if verdict.tell((attack.kind, attack.reason), logged) {
            rows.push((attack, after.0 - before.0, after.1 - before.1));
        } else {
            as_expected = false;
        }
    }
    table(&rows);
    attacker::sum_up(rows.len(), ATTACKS.len());
    as_expected
}

fn table(rows: &[(&Attack, usize, usize)]) {
    println!();
    println!("  {:<58} {:<8} {:<8} here", "attack", "STS", "EC2");
    println!("  {:-<58} {:-<8} {:-<8} {:-<34}", "", "", "", "");
    for (attack, sts, ec2) in rows {
        let Attack {
            what, kind, reason, ..
        } = attack;
        println!("  {what:<58} {sts:<8} {ec2:<8} {kind}: {reason}");
    }
}
