//! Tests in which an administrator revokes a node's certificate.

use std::process::Command;

use kubelet_authenticator_test_support::control_plane::has_condition;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{allow_short_certificates, kubelet};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::{Value, json};

use crate::SITE;
use crate::control_plane::of_kubeadm;
use crate::stock::{file, request};

/// A lifetime for which the renewal is after 100 to 140 seconds. Before the renewal, the certificate is revoked, and
/// its record is reset.
const SECONDS: u32 = 200;

/// Runs `node-attestation-controller identities <what> prod-1 <node>`. `what` can contain options.
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
fn nodes_are_revoked_and_reset_by_the_labels_of_their_machines() {
    let scene = Scene::start(&SITE, "selected", json!({}));
    for name in ["in-1", "in-2", "out-1"] {
        scene.join(&scene.cluster.machine(name).create());
    }
    let label = ["machines.cluster.x-k8s.io", "in-1", "in-2", "rack=7"];
    let label = [&["label", "-n", "selected"][..], &label[..]].concat();
    scene.management().ok(label);
    let run = |what: &[&str], labels: &str| {
        let output = Command::new(program("node-attestation-controller"))
            .arg("identities")
            .args(what)
            .args(["prod-1", "--namespace", "selected", "--selector", labels])
            .arg("--kubeconfig")
            .arg(SITE.management.admin_kubeconfig())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let texts = (text(&output.stdout), text(&output.stderr));
        (output.status.code(), texts.0, texts.1)
    };
    let is_revoked = || {
        let of = |name| scene.record(name)["spec"]["revoked"].is_object();
        ["in-1", "in-2", "out-1"].map(of)
    };

    let (code, text, effect) = run(&["revoke", "--dry-run"], "rack=7");
    assert_eq!(
        (code, &*text),
        (Some(0), "Nothing was changed.\n"),
        "{effect}"
    );
    assert!(effect.contains("Revokes 2 nodes: in-1, in-2. "), "{effect}");
    let (code, text, error) = run(&["revoke", "--dry-run", "-o", "json"], "rack=7");
    assert_eq!(code, Some(0), "{error}");
    let document: Value = serde_json::from_str(&text).unwrap();
    let names = [0, 1].map(|number| document[number]["spec"]["nodeName"].clone());
    assert_eq!(names, ["in-1", "in-2"], "{document}");
    assert_eq!(is_revoked(), [false; 3]);

    let (code, text, error) = run(&["revoke", "--yes"], "rack=7");
    let revoked = "Revoked 2 of 2 nodes: in-1, in-2.\n";
    assert_eq!((code, &*text), (Some(0), revoked), "{error}");
    assert_eq!(is_revoked(), [true, true, false]);

    let (code, text, error) = run(&["reset", "--yes"], "rack=7");
    assert_eq!(
        (code, &*text),
        (Some(3), "Reset 0 of 2 nodes: -.\n"),
        "{error}"
    );
    assert!(
        error.contains("node in-1: ") && error.contains("--revoked"),
        "{error}"
    );
    let (code, text, error) = run(&["reset", "--revoked", "--yes"], "rack=7");
    let reset = "Reset 2 of 2 nodes: in-1, in-2.\n";
    assert_eq!((code, &*text), (Some(0), reset), "{error}");

    let (code, _, error) = run(&["revoke", "--yes"], "rack=8");
    assert_eq!(code, Some(3), "{error}");
    assert!(
        error.contains("no node identity of a Machine with rack=8"),
        "{error}"
    );
}

#[test]
fn the_controller_replaces_a_generation_floor_far_in_the_future() {
    const FLOOR: &str = "attestation.cluster.x-k8s.io/lowest-valid-generation";
    let scene = Scene::start(&SITE, "future-floor", json!({}));
    let management = scene.management();
    let target = ["kubeletauthentications", "prod-1", "-n", "future-floor"];
    let floor = || {
        let object = management.json([&["get"][..], &target].concat());
        let floor = object["metadata"]["annotations"][FLOOR].as_str();
        floor.map(str::to_owned)
    };
    // The Cluster is served for the first time, so the controller writes the creation time of its API server.
    let before = poll(2 * SWEPT, floor).expect("no floor");
    // This call returns after the controller has read the value.
    scene.authentication.touch(management, "Ready");

    let change = json!({"metadata": {"annotations": {FLOOR: "9999999999"}}});
    management.patch(&target, &change);

    let event = scene.wait_for_event("prod-1", "FloorInFuture");
    let note = event["message"].as_str().unwrap();
    assert!(
        note.contains("9999999999 is far in the future")
            && note.contains(&format!("replaced by {before},")),
        "{note}"
    );
    assert_eq!(floor().as_ref(), Some(&before));
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

#[test]
fn a_revoked_machine_without_its_record_cannot_renew_as_an_exempt_node() {
    let cluster = Scene::unattended(&SITE, "revoked-exempt");
    let machine = cluster.machine("cp-1").control_plane().create();
    let settings = json!({"autoApproveBindings": "Remove", "exemptNodes": ["ControlPlane"]});
    let scene = Scene::attend(&SITE, cluster, settings);
    scene.wait_for_paths("True", "Closed", &[]);
    scene.join(&machine);
    identities(&scene, &["revoke", "--yes"], "cp-1");
    let list = "revokednodecredentials/node-attestation-controller";
    let listed = poll(SWEPT, || {
        let printed = scene.kubectl().run(["get", list, "-o", "jsonpath={.spec}"]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        printed.contains(machine.provider_id()).then_some(())
    });
    assert!(listed.is_some(), "the revocation is not in the list");

    // The node still has the certificate that kubeadm created before the node was adopted.
    let namespace = scene.cluster.namespace();
    scene
        .management()
        .ok(["delete", "nodeidentity", "prod-1.cp-1", "-n", namespace]);
    let renewal = request("after-revocation", "cp-1");
    file(&scene, &of_kubeadm(&scene, "cp-1"), &renewal, None);

    scene.assert_denied("after-revocation", "IdentityRevoked");
}
