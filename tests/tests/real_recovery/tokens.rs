//! Nodes whose bootstrap tokens have ended.

use std::process::{Command, Output};

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::Management;
use kubelet_authenticator_tests::program;
use serde_json::json;

use crate::bed::{Manager, authorize, kubelet, management};
use crate::witness::{
    PATIENCE, issued, lose_disk, wait_for_certificate, wait_until_ready, workload,
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
fn a_node_that_lost_its_disk_after_its_token_ended_joins_once_the_token_is_recreated() {
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

    // Attestation is not enforced here, where a token is enough for any name.
    let refused = recreate(&management, &["m1"]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("attestation is not enforced in Cluster default/prod-1"),
        "{said}"
    );
    assert!(said.contains("--without-enforcement"), "{said}");
    assert_eq!(issued(&plane, "m1").len(), known);

    let recreated = recreate(&management, &["--all", "--without-enforcement"]);
    assert!(recreated.status.success(), "{recreated:?}");
    let table = String::from_utf8(recreated.stdout).unwrap();
    assert!(table.contains(machine.token().id()), "{table}");

    wait_for_certificate(&plane, "m1", known, |_| true);
    wait_until_ready(&plane, "m1");
}
