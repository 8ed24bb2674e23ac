//! An administrator revokes a node's certificate.

use std::process::Command;

use kubelet_authenticator_test_support::control_plane::has_condition;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{allow_short_certificates, kubelet};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::json;

use crate::SITE;

/// A lifetime with a renewal after 100 to 140 seconds: the certificate is revoked and its record reset before that.
const SECONDS: u32 = 200;

/// `node-attestation-controller identities <what> prod-1 <node>`, where `what` can have options.
#[track_caller]
fn identities(scene: &Scene, what: &[&str], node_name: &str) {
    let output = Command::new(program("node-attestation-controller"))
        .arg("identities")
        .args(what)
        .args(["prod-1", node_name])
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
fn a_revoked_and_reset_node_rejoins_with_its_next_renewal() {
    allow_short_certificates(&SITE.management);
    let settings = json!({"certificate": {"expirationSeconds": SECONDS}});
    let scene = Scene::start(&SITE, "returns", settings);
    let machine = scene.cluster.machine("returns").create();
    let kubelet = kubelet(&scene.cluster, &machine, "kubelet-authenticator-null");
    let mut kubelet = kubelet.start();
    kubelet.wait_until_ready();

    identities(&scene, &["revoke", "--yes"], "returns");
    kubelet.wait_for_log("is revoked");
    identities(&scene, &["reset", "--revoked", "--yes"], "returns");

    scene.wait_for_record("returns", |record| {
        record["spec"]["formerUntil"].is_string()
    });
    kubelet.wait_for_lease_renewal();
    wait_until(&scene, "returns", true, || kubelet.log());
    let metrics = kubelet.metrics();
    let failed = [("call_status", "plugin_execution_error")];
    let failures = metrics.sum("rest_client_exec_plugin_call_total", &failed);
    assert_eq!(failures, 0.0, "{}", metrics.text());
}
