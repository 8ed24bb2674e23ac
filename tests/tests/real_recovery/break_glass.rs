//! Tests of a management cluster that hosts itself: its controller cannot run after the loss of the nodes on which it
//! would run. An operator follows docs/break-glass.md.

use std::ffi::OsString;
use std::sync::Arc;

use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::process::{Process, Scratch, poll};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::cloud::Cloud;
use kubelet_authenticator_tests::controller::{is_answered, reason_of};
use kubelet_authenticator_tests::fleet::{
    assert_first_generation, assert_later_generation, kubelet_of_instance, kubelet_of_tpm,
};
use kubelet_authenticator_tests::management::{Contract, Machine, Management, WorkloadCluster};
use kubelet_authenticator_tests::page::{Desk, steps};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::bed::{Manager, allow_short_certificates, authorize, grant, kubelet};
use crate::witness::{
    PATIENCE, issued, lines, mark, not_after, record, uid_of, wait_for_certificate,
    wait_until_not_ready, wait_until_ready, workload,
};

/// The lifetime of certificates, which is short because a test cannot wait for a week.
const SECONDS: u32 = 60;

/// The name of the Cluster, in the namespace `default`.
const CLUSTER: &str = "mgmt";

/// A management cluster that hosts itself, and a node that has joined.
struct Bed {
    management: Management,
    cluster: WorkloadCluster,
    manager: Manager,
    machine: Machine,
    kubelet: Kubelet,
    /// The options and the environment of the controller. The operator uses the same options.
    options: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
}

/// Creates the management cluster and the Cluster.
fn self_hosted() -> (Management, WorkloadCluster) {
    let management = Management::on(workload(), Contract::V1Beta2);
    grant(&management);
    allow_short_certificates(&management);
    let cluster = management.cluster(CLUSTER).self_hosted().create();
    (management, cluster)
}

fn attest(management: &Management, cluster: &WorkloadCluster, attestor: &str) {
    let spec = json!({"certificate": {"expirationSeconds": SECONDS}});
    authorize(management, cluster, &[attestor], spec).wait_until_ready(management.kubectl());
}

#[test]
fn an_insecure_node_rejoins_with_the_documented_commands() {
    let (management, cluster) = self_hosted();
    let manager = Manager::insecure(&management, &[]);
    attest(&management, &cluster, "insecure");
    let machine = cluster.machine("w-1").create();
    let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-insecure").start();
    story(Bed {
        management,
        cluster,
        manager,
        machine,
        kubelet,
        options: vec!["--allow-insecure".into()],
        environment: Vec::new(),
    });
}

#[test]
fn an_aws_node_rejoins_with_the_documented_commands() {
    let cloud = Cloud::start();
    let (management, cluster) = self_hosted();
    let manager = Manager::aws(&management, &cloud, &[]);
    attest(&management, &cluster, "aws");
    let owned = format!("sigs.k8s.io/cluster-api-provider-aws/cluster/{CLUSTER}");
    let instance = cloud.launch(&[(&owned, "owned")]);
    let machine = cluster.machine("w-1").provider_id(&instance.provider_id());
    let machine = machine.node_name(instance.node_name()).create();
    let plane = cluster.control_plane().clone();
    let token = machine.token().bearer();
    let kubelet = kubelet_of_instance(&plane, &token, &cloud, &instance).start();
    story(Bed {
        management,
        cluster,
        manager,
        machine,
        kubelet,
        options: cloud.manager_arguments(),
        environment: cloud.manager_environment().into(),
    });
}

#[test]
fn a_tpm_node_rejoins_with_the_documented_commands() {
    let tpm = Arc::new(Swtpm::start());
    let spki = TpmMachine::new(tpm.clone(), EndorsementKey::P384).ek_spki();
    let digest = Sha256::digest(spki)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    let keys = Scratch::new("challenge-keys");
    keys.write("current", "0f".repeat(32));
    let (management, cluster) = self_hosted();
    let directory = keys.path().display().to_string();
    let options = ["--tpm-challenge-keys", &directory];
    let manager = Manager::start(&management, "node-attestation-controller", &options);
    attest(&management, &cluster, "tpm");
    let machine = cluster
        .machine("w-1")
        .provider_id(&format!("tpm://{digest}"))
        .create();
    let kubelet = kubelet_of_tpm(&cluster, &machine, &tpm.tcti()).start();
    story(Bed {
        management,
        cluster,
        manager,
        machine,
        kubelet,
        // The commands on the page create a new key.
        options: vec!["--tpm-challenge-keys".into(), "challenge-keys".into()],
        environment: Vec::new(),
    });
}

fn story(bed: Bed) {
    let Bed {
        management,
        cluster,
        mut manager,
        machine,
        kubelet,
        options,
        environment,
    } = bed;
    let plane = cluster.control_plane().clone();
    let node = machine.node_name().to_owned();
    kubelet.wait_until_ready();
    let before = record(management.kubectl(), "default", CLUSTER, &node);

    // The controller's Pods end with their nodes, and the Secrets of the Cluster are also lost.
    manager.process.kill();
    cluster.delete_secret("kubeconfig");
    cluster.delete_secret("ca");
    wait_until_expired(&plane, &node);
    wait_until_not_ready(&plane, &node);

    // Without this step, the controller would answer requests that the node created with its certificate while no
    // controller was running.
    let of_node = format!("system:node:{node}");
    let renewals = |csr: &Value| csr["spec"]["username"] == *of_node && !is_answered(csr);
    for csr in plane.csrs().into_iter().filter(renewals) {
        let name = csr["metadata"]["name"].as_str().unwrap();
        plane
            .kubectl()
            .ok(["delete", "certificatesigningrequest", name]);
    }

    let known = issued(&plane, &node).len();
    let (desk, run) = follow(&plane, &cluster);
    let run = options.iter().fold(run, |run, option| {
        format!("{run} {}", option.to_str().unwrap())
    });
    let shell = desk.shell(&format!("exec {run} --log-format json"));
    let shell = environment
        .iter()
        .fold(shell, |shell, (name, value)| shell.env(name, value));
    let mut by_hand = shell.spawn(&desk.files().join("controller.log"));
    let back = wait_for_certificate(&plane, &node, known, |_| true);
    let by_token = format!("system:bootstrap:{}", machine.token().id());
    assert_eq!(back["spec"]["username"], by_token);
    wait_until_ready(&plane, &node);
    let now = record(management.kubectl(), "default", CLUSTER, &node);
    assert_first_generation(&before);
    assert_later_generation(&now);
    assert_eq!(uid_of(&back), mark(&now));
    assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"]);
    end(&mut by_hand);

    // The controller can run on nodes again.
    let known = issued(&plane, &node).len();
    drop(manager);
    let arguments: Vec<_> = options
        .iter()
        .map(|option| {
            let option = option.to_str().unwrap().to_owned();
            if option == "challenge-keys" {
                desk.files().join(&option).display().to_string()
            } else {
                option
            }
        })
        .collect();
    let again = desk.shell(&format!(
        "exec node-attestation-controller run --kubeconfig {} --log-format json {}",
        plane.admin_kubeconfig().display(),
        arguments.join(" ")
    ));
    let again = environment
        .iter()
        .fold(again, |shell, (name, value)| shell.env(name, value));
    let again = again.spawn(&desk.files().join("again.log"));
    let uid = before["spec"]["uid"].as_str().unwrap();
    wait_for_certificate(&plane, &node, known, |csr| uid_of(csr).starts_with(uid));
    wait_until_ready(&plane, &node);
    let decided = lines(&again, "decided");
    let denied = |line: &&Value| line["outcome"] == "denied";
    assert_eq!(decided.iter().find(denied), None);
    let mut all = plane.csrs();
    all.retain(|csr| reason_of(csr, "Denied").is_some());
    assert!(all.is_empty(), "{all:#?}");
}

/// Runs the commands on the page, up to the command that runs the controller. Returns that command.
fn follow(plane: &ControlPlane, cluster: &WorkloadCluster) -> (Desk, String) {
    let desk = Desk::new(plane.admin_kubeconfig());
    let pki = [
        (
            "/etc/kubernetes/admin.conf",
            plane.admin_kubeconfig().display().to_string(),
        ),
        (
            "/etc/kubernetes/pki/ca.crt",
            plane.ca_cert_path().display().to_string(),
        ),
        (
            "/etc/kubernetes/pki/ca.key",
            plane.ca_key_path().display().to_string(),
        ),
        ("NAMESPACE", cluster.namespace().to_owned()),
        ("NAME", cluster.name().to_owned()),
    ];
    let steps = steps("break-glass.md", "## What to do").into_iter();
    let commands: Vec<_> = steps
        .filter(|(prompt, _)| *prompt == '#')
        .map(|(_, command)| {
            pki.iter().fold(command, |command, (word, value)| {
                command.replace(word, value)
            })
        })
        .collect();
    let run = commands
        .iter()
        .position(|command| command.contains("node-attestation-controller run"));
    let run = run.expect("a command that runs the controller");
    desk.follow(&commands[..run].join("\n"));
    (desk, commands[run].clone())
}

fn end(controller: &mut Process) {
    controller.signal(Signal::TERM);
    assert_eq!(
        controller.wait(PATIENCE).code(),
        Some(0),
        "{}",
        controller.log()
    );
}

fn wait_until_expired(plane: &ControlPlane, node: &str) {
    let end = issued(plane, node).iter().map(not_after).max().unwrap();
    let ended = poll(PATIENCE, || (jiff::Timestamp::now() > end).then_some(()));
    assert!(ended.is_some());
}
