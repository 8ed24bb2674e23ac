//! A person revokes a node's certificate.

use std::process::Command;

use kubelet_authenticator_test_support::control_plane::has_condition;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::kubelet;
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::json;

use crate::SITE;

/// `node-attestation-controller identities <what> prod-1 <node>`.
#[track_caller]
fn identities(scene: &Scene, what: &str, node_name: &str) {
    let output = Command::new(program("node-attestation-controller"))
        .args(["identities", what, "prod-1", node_name])
        .args(["--namespace", scene.cluster.namespace()])
        .arg("--kubeconfig")
        .arg(SITE.management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[track_caller]
fn wait_until(scene: &Scene, node_name: &str, ready: bool, log: impl Fn() -> String) {
    let found = poll(2 * SWEPT, || {
        let node = scene.kubectl().json(["get", "node", node_name]);
        (has_condition(&node, "Ready") == ready).then_some(())
    });
    assert!(found.is_some(), "never Ready={ready}: {}", log());
}

#[test]
fn a_kubelet_whose_certificate_is_revoked_goes_not_ready_and_comes_back_after_a_reset() {
    let scene = Scene::start(&SITE, "revoked", json!({}));
    let machine = scene.cluster.machine("stolen").create();
    let kubelet = kubelet(&scene.cluster, &machine, "kubelet-authenticator-null");
    let mut kubelet = kubelet.start();
    kubelet.wait_until_ready();

    identities(&scene, "revoke", "stolen");

    wait_until(&scene, "stolen", false, || kubelet.log());
    let log = kubelet.wait_for_log("is revoked");
    assert!(log.contains("system:node:stolen"), "{log}");

    identities(&scene, "reset", "stolen");
    std::fs::remove_dir_all(kubelet.var_lib().join("kubelet-authenticator")).unwrap();
    kubelet.restart();

    wait_until(&scene, "stolen", true, || kubelet.log());
    assert_eq!(scene.record("stolen")["spec"]["generation"], 2);
}
