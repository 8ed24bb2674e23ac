//! Tests of nodes whose bootstrap tokens have expired.

use std::fs;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::certificate_of;
use kubelet_authenticator_tests::fleet::{
    allow_short_certificates, assert_later_generation, first_exec, join_stock, kubelet_with,
};
use kubelet_authenticator_tests::management::{Machine, Management, WorkloadCluster};
use kubelet_authenticator_tests::program;
use rustix::process::Signal;
use serde_json::{Value, json};
use x509_parser::pem::parse_x509_pem;

use crate::bed::{Authentication, Manager, authorize, kubelet, management};
use crate::witness::{
    PATIENCE, issued, lose_disk, mark, record, wait_for_certificate, wait_until_not_ready,
    wait_until_ready, workload,
};

fn recreate(management: &Management, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("node-attestation-controller"));
    command
        .args(["tokens", "recreate", "prod-1", "--namespace=default"])
        .args(arguments)
        .args(["--insecure-allow-loopback", "--kubeconfig"])
        .arg(management.admin_kubeconfig());
    command.output().unwrap()
}

#[test]
fn a_node_without_disk_and_token_joins_after_the_token_is_recreated() {
    let management = management();
    let cluster = management
        .cluster("prod-1")
        .workload(workload().into())
        .create();
    let plane = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let _manager = Manager::null(&management, &[]);
    authorize(&management, &cluster, &["aws"], json!({})).wait_until_ready(management.kubectl());
    let mut kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    let known = issued(&plane, "m1").len();
    let secret = format!("bootstrap-token-{}", machine.token().id());
    let kubectl = plane.kubectl();
    kubectl.ok(["delete", "secret", "-n=kube-system", &secret]);

    let bearer = plane.kubectl_with(machine.bootstrap_kubeconfig());
    let ended = poll(PATIENCE, || {
        let said = bearer.raw("/api").err()?;
        said.contains("Unauthorized").then_some(())
    });
    assert!(ended.is_some(), "the API server still knows the token");

    lose_disk(&mut kubelet);
    kubelet.wait_for_log("Unauthorized");

    // Attestation is not enforced in this cluster, so a token is sufficient to join with any node name.
    let refused = recreate(&management, &["m1"]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("attestation is not enforced in Cluster default/prod-1"),
        "{said}"
    );
    assert!(said.contains("--without-enforcement"), "{said}");
    assert_eq!(issued(&plane, "m1").len(), known);

    // The reference in another Machine cannot be resolved.
    cluster.machine("other").create();
    let words = ["delete", "kubeadmconfig", "other", "-n=default"];
    management.kubectl().ok(words);
    let recreated = recreate(&management, &["--all", "--without-enforcement"]);
    assert_eq!(recreated.status.code(), Some(3), "{recreated:?}");
    let table = String::from_utf8(recreated.stdout).unwrap();
    assert!(table.contains(machine.token().id()), "{table}");
    let said = String::from_utf8(recreated.stderr).unwrap();
    let reported = "error: Machine other: cannot read KubeadmConfig other: ";
    assert!(said.contains(reported), "{said}");

    wait_for_certificate(&plane, "m1", known, |_| true);
    wait_until_ready(&plane, "m1");
}

/// The lifetime in seconds, which represents the default of 7 days. The other times in these tests are fractions of
/// this lifetime.
const LIFETIME: u32 = 45;

/// A cluster whose certificates expire during a test, and its nodes.
struct Town {
    management: Management,
    cluster: WorkloadCluster,
    authentication: Authentication,
    nodes: Vec<(Machine, Kubelet)>,
    _manager: Manager,
}

impl Town {
    #[track_caller]
    fn start(names: &[&str]) -> Self {
        Self::start_with(names, "Refuse")
    }

    /// Like [`start`](Self::start), but with this value of `adoption`.
    #[track_caller]
    fn start_with(names: &[&str], adoption: &str) -> Self {
        let management = management();
        allow_short_certificates(&management);
        let builder = management.cluster("prod-1").workload(workload().into());
        let cluster = builder.create();
        let manager = Manager::null(&management, &[]);
        let settings = json!({
            "certificate": {"expirationSeconds": LIFETIME}, "adoption": adoption,
        });
        let authentication = authorize(&management, &cluster, &["aws"], settings);
        authentication.wait_until_ready(management.kubectl());
        let nodes = names.iter().map(|name| {
            let machine = cluster.machine(name).create();
            let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
            kubelet.wait_until_ready();
            (machine, kubelet)
        });
        Self {
            nodes: nodes.collect(),
            management,
            cluster,
            authentication,
            _manager: manager,
        }
    }

    fn plane(&self) -> &ControlPlane {
        self.cluster.control_plane()
    }

    /// Makes a node join with stock kubeadm, adopts the node, and replaces its bootstrap kubeconfig as in adopt.md.
    #[track_caller]
    fn adopt(&mut self, name: &str) {
        let machine = self.cluster.machine(name).create();
        let (mut stock, kubeconfig) = join_stock(&self.cluster, &machine);
        stock.kill();
        let known = issued(self.plane(), name).len();
        let exec = first_exec(&kubeconfig, "kubelet-authenticator-null");
        let exec = exec.setting("providerID", machine.provider_id());
        let kubelet = kubelet_with(&self.cluster, &machine, exec).start();
        wait_for_certificate(self.plane(), name, known, |_| true);
        kubelet.wait_for_lease_renewal();
        fs::copy(machine.bootstrap_kubeconfig(), kubeconfig).unwrap();
        self.nodes.push((machine, kubelet));
    }

    fn record(&self, node: &str) -> Value {
        record(self.management.kubectl(), "default", "prod-1", node)
    }

    /// Deletes the bootstrap token of each Machine, as Kubernetes does when a token expires.
    fn end_tokens(&self) {
        for (machine, _) in &self.nodes {
            let secret = format!("bootstrap-token-{}", machine.token().id());
            let kubectl = self.plane().kubectl();
            kubectl.ok(["delete", "secret", "-n=kube-system", &secret]);
        }
    }

    fn annotate(&self, value: &str) {
        let words = ["annotate", "kubeletauthentication", "prod-1", value];
        self.management.kubectl().ok(words);
    }

    /// The expiry times of the nodes' latest certificates.
    fn ends(&self) -> Vec<i64> {
        let ends = self.nodes.iter().map(|(machine, _)| {
            let issued = issued(self.plane(), machine.node_name());
            let pem = certificate_of(issued.last().unwrap()).unwrap();
            let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
            let end = pem.parse_x509().unwrap().validity().not_after;
            end.timestamp()
        });
        ends.collect()
    }

    /// Recreates the tokens of the nodes while the nodes are down, and waits until the nodes are ready. A node that was
    /// running gets the certificate that it requested before its own certificate expired.
    #[track_caller]
    fn come_back(&mut self) {
        for (_, kubelet) in &mut self.nodes {
            kubelet.wait_for_log("Unauthorized");
        }
        let names = self.nodes.iter().map(|(machine, _)| machine.node_name());
        let names: Vec<&str> = names.collect();
        for name in &names {
            wait_until_not_ready(self.plane(), name);
        }

        let recreated = recreate(&self.management, &["--all", "--without-enforcement"]);

        assert!(recreated.status.success(), "{recreated:?}");
        for name in &names {
            wait_until_ready(self.plane(), name);
        }
    }
}

#[track_caller]
fn wait_until_all_ended(ends: &[i64]) {
    let last = ends.iter().max().unwrap();
    let passed = || (jiff::Timestamp::now().as_second() > *last).then_some(());
    assert!(poll(PATIENCE, passed).is_some());
}

#[test]
fn nodes_rejoin_with_new_tokens_after_their_certificates_expire() {
    const PAUSED: &str = "cluster.x-k8s.io/paused";
    let mut town = Town::start(&["runs", "is-off"]);
    town.annotate(&format!("{PAUSED}="));
    let kubectl = town.management.kubectl();
    town.authentication
        .wait_for(kubectl, "Ready", "False", "Paused");
    town.nodes[1].1.kill();
    town.end_tokens();

    wait_until_all_ended(&town.ends());
    town.nodes[1].1.start();
    town.annotate(&format!("{PAUSED}-"));
    town.authentication
        .wait_until_ready(town.management.kubectl());

    town.come_back();
}

#[test]
fn nodes_rejoin_with_new_tokens_after_a_long_hibernation() {
    let mut town = Town::start(&["sleeps"]);
    town.nodes[0].1.kill();
    town.end_tokens();
    let ends = town.ends();
    town.plane().apiserver().signal(Signal::STOP);

    wait_until_all_ended(&ends);
    town.plane().apiserver().signal(Signal::CONT);
    town.nodes[0].1.start();

    town.come_back();
}

#[test]
fn an_adopted_node_off_until_expiry_rejoins_with_its_recreated_token() {
    let mut town = Town::start_with(&[], "Allow");
    town.adopt("adopted");
    town.nodes[0].1.kill();
    town.end_tokens();
    let adopted = mark(&town.record("adopted"));

    wait_until_all_ended(&town.ends());
    town.nodes[0].1.start();

    town.come_back();
    let returned = town.record("adopted");
    assert_later_generation(&returned);
    assert_ne!(mark(&returned), adopted);
}
