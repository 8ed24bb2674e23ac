//! Tests of names that get a new holder, and of the Nodes of the previous holders.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{Application, PATIENCE, is_answered, is_issued};
use kubelet_authenticator_tests::fleet::assert_later_generation;
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::scene::{SWEPT, Scene, Site};
use serde_json::{Value, json};

use crate::SITE;

/// Creates two machines with the same name, one after the other. The first machine has joined and was deleted. Returns
/// the second machine, and the Node of the first machine.
fn reused(scene: &Scene, join: Join, name: &str) -> (Machine, Value) {
    let first = scene.cluster.machine("first").node_name(name).create();
    let credential = join(scene, &first);
    let node = node(name, first.provider_id());
    let plane = scene.cluster.control_plane();
    let node = plane.kubectl_with(&credential).create_object(&node);
    first.remove();
    scene.wait_for_record(name, |record| record["spec"]["tombstone"].is_object());
    let second = scene.cluster.machine("second").node_name(name).create();
    (second, node)
}

/// A function that makes a machine join, and returns a kubeconfig with its certificate.
type Join = fn(&Scene, &Machine) -> PathBuf;

/// Makes a machine join with only a bootstrap token.
fn join_without_evidence(scene: &Scene, machine: &Machine) -> PathBuf {
    let (name, provider_id) = (machine.node_name(), machine.provider_id());
    let application = Application::claiming(name, provider_id, Provider::INSECURE, None);
    scene.join_by(&machine.bootstrap_kubeconfig(), &application)
}

/// A Cluster whose machines join with only their bootstrap tokens.
pub fn insecure(namespace: &str, settings: Value) -> Scene {
    static INSECURE: LazyLock<Arc<Site>> = LazyLock::new(Site::insecure);
    let cluster = Scene::unattended(&INSECURE, namespace);
    Scene::attend_by(&INSECURE, cluster, "insecure", settings)
}

/// A Node, as created by this machine's kubelet.
fn node(name: &str, provider_id: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name},
        "spec": {"providerID": provider_id},
    })
}

fn uid_of_node(scene: &Scene, name: &str) -> Option<Value> {
    let output = scene.kubectl().run(["get", "node", name, "-o", "json"]);
    let node: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(node["metadata"]["uid"].clone())
}

#[test]
fn a_machine_pool_gets_an_event_for_an_unlisted_member() {
    let scene = Scene::start(&SITE, "pool-waits", json!({}));
    let pool = scene.cluster.pool("pool-a").create();
    let claims = scene.stamped("b", "generic:///pool/b");

    let name = scene.file(&pool.bootstrap_kubeconfig(), &claims);

    let event = scene.assert_waits("pool-a", &name, "MachineNotFound");
    let regarding = &event["involvedObject"];
    assert_eq!(regarding["kind"], "MachinePool", "{event:#}");
    assert_eq!(regarding["uid"], pool.get()["metadata"]["uid"]);

    pool.set_provider_ids(&["generic:///pool/b"]);
    let answered = poll(PATIENCE, || Some(scene.request(&name)).filter(is_answered));
    assert!(answered.as_ref().is_some_and(is_issued), "{answered:?}");
}

fn a_stale_node_goes(scene: &Scene, join: Join) {
    let (second, stale) = reused(scene, join, "again");

    join(scene, &second);

    let uid = uid_of_node(scene, "again");
    assert_ne!(uid.as_ref(), Some(&stale["metadata"]["uid"]));
    assert_later_generation(&scene.record("again"));
    assert_eq!(
        scene.record("again")["spec"]["providerID"],
        second.provider_id()
    );
}

#[test]
fn a_stale_node_is_deleted_before_its_name_is_granted() {
    let scene = Scene::start(&SITE, "stale-deleted", json!({}));

    a_stale_node_goes(&scene, Scene::join);
}

#[test]
fn a_stale_node_is_deleted_before_its_name_is_granted_without_evidence() {
    let scene = insecure("stale-insecure", json!({}));

    a_stale_node_goes(&scene, join_without_evidence);
}

/// Only some machines run the plugin. A worker and a control-plane machine that were set up with stock kubeadm reuse
/// the names of other machines.
fn stock_nodes_stay(scene: &Scene, join: Join) {
    let retired = ["cp-1", "node-1", "node-2", "node-9"].map(|name| {
        let machine = scene.cluster.machine(name).create();
        join(scene, &machine);
        (name, machine.provider_id().to_owned(), machine)
    });
    let [.., (last, of_last, _)] = &retired;
    let (last, of_last) = (*last, of_last.clone());
    for (name, _, machine) in retired {
        machine.remove();
        scene.wait_for_record(name, |record| record["spec"]["tombstone"].is_object());
    }
    let worker = scene.cluster.machine("worker").node_name("node-1").create();
    let control_plane = scene.cluster.machine("control-plane").node_name("cp-1");
    let control_plane = control_plane.control_plane().create();
    for (name, provider_id) in [
        ("node-1", worker.provider_id()),
        ("cp-1", control_plane.provider_id()),
        // Without a cloud provider, kubelets that kubeadm configured do not have a provider ID.
        ("node-2", ""),
    ] {
        scene.kubectl().create_object(&node(name, provider_id));
    }

    // The test waits for two sweeps, so that all Nodes existed when the second sweep started.
    for _ in 0..2 {
        let left = scene.kubectl().create_object(&node(last, &of_last));
        let uid = Some(left["metadata"]["uid"].clone());
        let is_gone = || (uid_of_node(scene, last) != uid).then_some(());
        assert!(poll(SWEPT, is_gone).is_some(), "{left:#}");
    }

    for name in ["node-1", "cp-1", "node-2"] {
        assert!(uid_of_node(scene, name).is_some(), "{name}");
    }
}

#[test]
fn unrecorded_nodes_are_kept_in_report_mode() {
    let scene = Scene::start(&SITE, "stock-reported", json!({}));

    stock_nodes_stay(&scene, Scene::join);
}

#[test]
fn unrecorded_nodes_are_kept_in_enforce_mode() {
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = Scene::start(&SITE, "stock-enforced", settings);
    let message = scene.wait_for_paths("True", "Closed", &[]);
    assert!(!message.contains("not enforced"), "{message}");

    stock_nodes_stay(&scene, Scene::join);
}

#[test]
fn unrecorded_nodes_are_kept_next_to_insecure_nodes() {
    let scene = insecure("stock-insecure", json!({}));

    stock_nodes_stay(&scene, join_without_evidence);
}

#[test]
fn unrecorded_nodes_are_kept_next_to_enforced_insecure_nodes() {
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = insecure("stock-closed", settings);
    let message = scene.wait_for_paths("True", "Closed", &[]);
    assert!(!message.contains("not enforced"), "{message}");

    stock_nodes_stay(&scene, join_without_evidence);
}

#[test]
fn a_name_reported_for_two_machines_waits_until_only_one_has_it() {
    let scene = Scene::start(&SITE, "shared-name", json!({}));
    let host = "rack-3.example.com";
    let [first, second] = ["first", "second"].map(|name| {
        let machine = scene.cluster.machine(name);
        machine.address("Hostname", host).create()
    });

    let application = scene.stamped(host, first.provider_id());
    let name = scene.file(&first.bootstrap_kubeconfig(), &application);

    scene.assert_waits("first", &name, "NodeNameShared");
    let event = scene.wait_for_event("first", "NodeNameShared");
    let message = event["message"].as_str().unwrap();
    let both = "machines first and second have the same node name rack-3.example.com";
    assert!(message.contains(both), "{message}");

    second.set_addresses(&[("Hostname", "rack-4.example.com")]);
    let answered = poll(PATIENCE, || Some(scene.request(&name)).filter(is_answered));
    let answered = answered.unwrap_or_else(|| panic!("{:#}", scene.request(&name)));
    assert!(is_issued(&answered), "{answered:#}");
    let record = scene.record(host);
    assert_eq!(record["spec"]["providerID"], first.provider_id());
}
