//! Names that change hands, and the Nodes that former holders left.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{PATIENCE, is_answered, is_issued};
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::{Value, json};

use crate::SITE;

/// Two machines that are called alike, one after the other: the first has joined and is gone.
/// Gives the second, and the Node that the first left.
fn reused(scene: &Scene, name: &str) -> (Machine, Value) {
    let first = scene.cluster.machine("first").node_name(name).create();
    let credential = scene.join(&first);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let plane = scene.cluster.control_plane();
    let node = plane.kubectl_with(&credential).create_object(&node);
    first.remove();
    scene.wait_for_record(name, |record| record["spec"]["tombstone"].is_object());
    let second = scene.cluster.machine("second").node_name(name).create();
    (second, node)
}

fn uid_of_node(scene: &Scene, name: &str) -> Option<Value> {
    let output = scene.kubectl().run(["get", "node", name, "-o", "json"]);
    let node: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(node["metadata"]["uid"].clone())
}

#[test]
fn a_name_in_quarantine_waits_until_its_former_certificate_has_expired() {
    let settings = json!({
        "nameReuse": "Quarantine",
        "certificate": {"expirationSeconds": 600},
    });
    let scene = Scene::start(&SITE, "quarantine", settings);
    let (second, _) = reused(&scene, "again");

    let name = scene.file(&second.bootstrap_kubeconfig(), &scene.rightful(&second));

    scene.assert_waits("second", &name, "NameQuarantined");
    assert_eq!(scene.record("again")["spec"]["generation"], 1);

    // Whoever allows it has it at once.
    scene.change(&json!({"nameReuse": "Allow"}));
    let answered = poll(SWEPT, || Some(scene.request(&name)).filter(is_answered));
    assert!(answered.is_some(), "{:#}", scene.request(&name));
    assert_eq!(scene.record("again")["spec"]["generation"], 2);
}

#[test]
fn a_machine_that_has_no_provider_id_is_told_that_its_request_waits_and_how_long() {
    let scene = Scene::start(&SITE, "waits", json!({}));
    let machine = scene.cluster.machine("late").without_provider_id().create();
    let claims = scene.stamped(machine.node_name(), "generic:///rack/late");

    let name = scene.file(&machine.bootstrap_kubeconfig(), &claims);

    let event = scene.wait_for_warning("late", "MachineNotFound");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("it has waited for 3"), "{message}");
    assert!(!is_answered(&scene.request(&name)));
}

#[test]
fn a_pool_is_told_of_a_request_of_a_member_that_nobody_has_listed_yet() {
    let scene = Scene::start(&SITE, "pool-waits", json!({}));
    let pool = scene.cluster.pool("pool-a").create();
    let claims = scene.stamped("b", "generic:///pool/b");

    let name = scene.file(&pool.bootstrap_kubeconfig(), &claims);

    let event = scene.wait_for_warning("pool-a", "MachineNotFound");
    let regarding = &event["involvedObject"];
    assert_eq!(regarding["kind"], "MachinePool", "{event:#}");
    assert_eq!(regarding["uid"], pool.get()["metadata"]["uid"]);
    assert!(!is_answered(&scene.request(&name)));

    pool.set_provider_ids(&["generic:///pool/b"]);
    let answered = poll(4 * PATIENCE, || {
        Some(scene.request(&name)).filter(is_answered)
    });
    assert!(answered.as_ref().is_some_and(is_issued), "{answered:?}");
}

#[test]
fn a_former_holders_node_is_deleted_before_the_name_is_anothers() {
    let scene = Scene::start(&SITE, "stale-deleted", json!({"staleNodes": "Delete"}));
    let (second, stale) = reused(&scene, "again");

    scene.join(&second);

    let uid = uid_of_node(&scene, "again");
    assert_ne!(uid.as_ref(), Some(&stale["metadata"]["uid"]));
    assert_eq!(scene.record("again")["spec"]["generation"], 2);
    assert_eq!(
        scene.record("again")["spec"]["providerID"],
        second.provider_id()
    );
}

#[test]
fn a_former_holders_node_stays_where_a_person_is_to_delete_it() {
    let scene = Scene::start(&SITE, "stale-refused", json!({"staleNodes": "Refuse"}));
    let (second, stale) = reused(&scene, "again");

    let name = scene.file(&second.bootstrap_kubeconfig(), &scene.rightful(&second));

    scene.assert_waits("second", &name, "StaleNode");
    let uid = uid_of_node(&scene, "again");
    assert_eq!(uid.as_ref(), Some(&stale["metadata"]["uid"]));

    scene.kubectl().ok(["delete", "node", "again"]);
    let answered = poll(4 * PATIENCE, || {
        Some(scene.request(&name)).filter(is_answered)
    });
    assert!(answered.is_some(), "{:#}", scene.request(&name));
    assert_eq!(scene.record("again")["spec"]["generation"], 2);
}

#[test]
fn a_node_has_the_name_that_its_infrastructure_reports_of_its_host() {
    let scene = Scene::start(&SITE, "host-names", json!({}));
    let machine = scene.cluster.machine("md-0-x7k2p");
    let machine = machine.address("Hostname", "Rack-3.example.com").create();
    let token = machine.bootstrap_kubeconfig();
    let called = |name: &str| scene.stamped(name, machine.provider_id());

    let name = scene.file(&token, &called("rack-4.example.com"));
    scene.assert_denied(&name, "NodeNameMismatch");
    let event = scene.wait_for_event("md-0-x7k2p", "NodeNameMismatch");
    let message = event["message"].as_str().unwrap();
    let names = "md-0-x7k2p or rack-3.example.com";
    assert!(message.contains(names), "{message}");

    let name = scene.file(&token, &called("rack-3.example.com"));
    let answer = scene.answer(&name);
    assert!(is_issued(&answer), "{answer:#}");
    let record = scene.record("rack-3.example.com");
    assert_eq!(record["spec"]["providerID"], machine.provider_id());
}

#[test]
fn a_name_that_is_reported_of_two_machines_waits_until_it_is_ones() {
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
    let both = ["machine first", "machine second", host];
    assert!(both.iter().all(|it| message.contains(it)), "{message}");

    second.set_addresses(&[("Hostname", "rack-4.example.com")]);
    let answered = poll(4 * PATIENCE, || {
        Some(scene.request(&name)).filter(is_answered)
    });
    let answered = answered.unwrap_or_else(|| panic!("{:#}", scene.request(&name)));
    assert!(is_issued(&answered), "{answered:#}");
    let record = scene.record(host);
    assert_eq!(record["spec"]["providerID"], first.provider_id());
}
