//! A management cluster that hosts itself, so that its controller cannot run after the loss of the nodes that it
//! would run on.

use std::path::PathBuf;

use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::process::{Launch, Process, poll};
use kubelet_authenticator_tests::management::{Contract, Machine, Management, WorkloadCluster};
use kubelet_authenticator_tests::program;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bed::{Manager, allow_short_certificates, authorize, grant, kubelet};
use crate::witness::{
    PATIENCE, issued, lines, mark, none_is_refused, not_after, record, uid_of,
    wait_for_certificate, wait_until_not_ready, wait_until_ready, workload,
};

/// The lifetime of certificates: a test cannot wait for the end of a week.
const SECONDS: u32 = 60;

/// The programs of one attestation provider.
struct Provider {
    attestor: &'static str,
    plugin: &'static str,
    controller: &'static str,
    arguments: &'static [&'static str],
}

#[test]
fn workers_whose_certificates_have_all_expired_are_brought_back_by_hand() {
    story(&Provider {
        attestor: "aws",
        plugin: "kubelet-authenticator-null",
        controller: "null-attestation-controller",
        arguments: &[],
    });
}

#[test]
fn workers_that_prove_nothing_are_brought_back_by_hand() {
    story(&Provider {
        attestor: "insecure",
        plugin: "kubelet-authenticator-insecure",
        controller: "node-attestation-controller",
        arguments: &["--allow-insecure"],
    });
}

fn story(provider: &Provider) {
    let management = self_hosted();
    let cluster = management.cluster("mgmt").self_hosted().create();
    let plane = cluster.control_plane().clone();
    let machines = ["w-1", "w-2"].map(|name| cluster.machine(name).create());
    let mut manager = Manager::start(&management, provider.controller, provider.arguments);
    let spec = json!({"certificate": {"expirationSeconds": SECONDS}});
    authorize(&management, &cluster, &[provider.attestor], spec)
        .wait_until_ready(management.kubectl());
    let kubelets = machines
        .each_ref()
        .map(|machine| kubelet(&cluster, machine, provider.plugin).start());
    for kubelet in &kubelets {
        kubelet.wait_until_ready();
    }
    let records = records(&cluster, &machines);

    // The controller's Pods end with their nodes, or it was broken before.
    manager.process.kill();
    wait_until_all_have_expired(&plane, &machines);
    for machine in &machines {
        wait_until_not_ready(&plane, machine.node_name());
    }

    let known = certificates(&plane, &machines);
    let mut by_hand = by_hand(provider, &cluster);
    for ((machine, known), before) in machines.iter().zip(known).zip(&records) {
        let node = machine.node_name();
        // By its token in the next generation; or in the same one, by a renewal that it requested while no controller
        // ran and its certificate was still valid.
        let back = wait_for_certificate(&plane, node, known, |_| true);
        let by_token = format!("system:bootstrap:{}", machine.token().id());
        let rejoined = back["spec"]["username"] == by_token;
        let generation = u64::from(rejoined) + 1;
        assert_eq!(uid_of(&back), generation_of(before, generation));
        wait_until_ready(&plane, node);
        let now = record(management.kubectl(), "default", "mgmt", node);
        assert_eq!(mark(&now), generation_of(before, generation));
        assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"]);
    }
    by_hand.signal(Signal::TERM);
    assert_eq!(by_hand.wait(PATIENCE).code(), Some(0));

    // The controller has nodes to run on again.
    let known = certificates(&plane, &machines);
    let manager = Manager::start(&management, provider.controller, provider.arguments);
    for ((machine, known), before) in machines.iter().zip(known).zip(&records) {
        let uid = before["spec"]["uid"].as_str().unwrap();
        wait_for_certificate(&plane, machine.node_name(), known, |csr| {
            uid_of(csr).starts_with(uid)
        });
        wait_until_ready(&plane, machine.node_name());
    }
    let decided = lines(&manager.process, "decided");
    let bad = |line: &&Value| line["outcome"] == "denied" || line["outcome"] == "failed";
    assert_eq!(decided.iter().find(bad), None);
    none_is_refused(&plane);
}

/// A management cluster on whose workers everything else runs.
fn self_hosted() -> Management {
    let management = Management::on(workload(), Contract::V1Beta2);
    grant(&management);
    allow_short_certificates(&management);
    management
}

/// The command of an operator on a control-plane node.
fn by_hand(provider: &Provider, cluster: &WorkloadCluster) -> Process {
    let plane = cluster.control_plane();
    let admin = PathBuf::from(plane.admin_kubeconfig());
    Launch::new("by-hand", program(provider.controller))
        .arg("run")
        .arg("--workload-kubeconfig")
        .arg(&admin)
        .arg("--management-kubeconfig")
        .arg(&admin)
        .arg("--cluster")
        .arg(format!("{}/{}", cluster.namespace(), cluster.name()))
        .arg("--ca-cert")
        .arg(plane.ca_cert_path())
        .arg("--ca-key")
        .arg(plane.ca_key_path())
        .args(provider.arguments)
        .spawn(&plane.directory("by-hand").join("log"))
}

fn wait_until_all_have_expired(plane: &ControlPlane, machines: &[Machine]) {
    let ends = machines.iter().flat_map(|machine| {
        let issued = issued(plane, machine.node_name());
        issued.iter().map(not_after).collect::<Vec<_>>()
    });
    let end = ends.max().unwrap();
    let ended = poll(PATIENCE, || (jiff::Timestamp::now() > end).then_some(()));
    assert!(ended.is_some());
}

fn records(cluster: &WorkloadCluster, machines: &[Machine]) -> Vec<Value> {
    let kubectl = cluster.control_plane().kubectl();
    let record = |machine: &Machine| {
        record(
            kubectl,
            cluster.namespace(),
            cluster.name(),
            machine.node_name(),
        )
    };
    machines.iter().map(record).collect()
}

/// The number of certificates that each machine has been issued.
fn certificates(plane: &ControlPlane, machines: &[Machine; 2]) -> [usize; 2] {
    machines
        .each_ref()
        .map(|machine| issued(plane, machine.node_name()).len())
}

fn generation_of(record: &Value, generation: u64) -> String {
    assert_eq!(record["spec"]["generation"], 1);
    format!("{}.{generation}", record["spec"]["uid"].as_str().unwrap())
}
