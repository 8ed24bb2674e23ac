//! Tests of attackers who have a bootstrap token, or read access to all requests.

use jiff::Timestamp;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::{PATIENCE, is_issued};
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::scene::Scene;
use node_attestation_runtime::hardening::rate_limit::TOKEN_RATE;
use serde_json::{Value, json};

use crate::SCENE;
use kubelet_authenticator_tests::fleet::{assert_first_generation, kubelet};

/// A number of requests that exceeds the limit for one token in one minute.
const FLOOD: usize = 1000;

/// The number of clients that create these requests in parallel.
const FLOODERS: usize = 4;

/// The number of requests from one token that are processed per second, after its burst.
const PER_SECOND: usize = 10;

/// The tolerance, in requests. The delay between the start and the write of a decision varies. Therefore, the tolerance
/// is a little more than the number of requests that are processed at the same time.
const SLACK: f64 = 20.0;

#[test]
fn a_bootstrap_token_for_another_nodes_name_is_denied() {
    let own = SCENE.cluster.machine("token-own").create();
    let other = SCENE.cluster.machine("token-other").create();
    let application = SCENE.stamped(other.node_name(), own.provider_id());

    let name = SCENE.file(&own.bootstrap_kubeconfig(), &application);

    SCENE.assert_denied(&name, "NodeNameMismatch");
}

#[test]
fn a_bootstrap_token_cannot_claim_another_machine() {
    let own = SCENE.cluster.machine("claims-own").create();
    let unjoined = SCENE.cluster.machine("claims-unjoined").create();

    let name = SCENE.file(&own.bootstrap_kubeconfig(), &SCENE.rightful(&unjoined));

    SCENE.assert_denied(&name, "TokenOfAnotherMachine");
    SCENE.join(&unjoined);
}

#[test]
fn a_bootstrap_token_of_a_worker_cannot_join_a_control_plane_node() {
    let worker = SCENE.cluster.machine("worker-own").create();
    let control_plane = SCENE.cluster.machine("control-plane-1").control_plane();
    let control_plane = control_plane.create();

    let name = SCENE.file(
        &worker.bootstrap_kubeconfig(),
        &SCENE.rightful(&control_plane),
    );

    SCENE.assert_denied(&name, "TokenOfAnotherMachine");
}

#[test]
fn a_copied_request_with_another_token_is_denied() {
    let victim = SCENE.cluster.machine("copied").create();
    let own = SCENE.cluster.machine("copier").create();
    let seen = SCENE.rightful(&victim).to_json();
    let mut copy = seen.clone();
    copy["metadata"]["name"] = "kubelet-authenticator-copy".into();

    let plane = SCENE.cluster.control_plane();
    let kubectl = plane.kubectl_with(own.bootstrap_kubeconfig());
    kubectl.create_object(&copy);

    SCENE.assert_denied("kubelet-authenticator-copy", "TokenOfAnotherMachine");
}

#[test]
fn a_request_from_a_host_network_pod_waits_while_the_node_is_up() {
    let machine = SCENE.cluster.machine("with-pod").create();
    let kubelet = kubelet(&SCENE.cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();

    let name = SCENE.file(&machine.bootstrap_kubeconfig(), &SCENE.rightful(&machine));

    SCENE.assert_waits("with-pod", &name, "IdentityLive");
    assert_first_generation(&SCENE.record("with-pod"));
    assert_unanswered(Later::renewal(&kubelet), || SCENE.request(&name));
}

/// The times of the controller's decisions on this token's requests, from its log, in order.
fn decided(scene: &Scene, machine: &Machine) -> Vec<Timestamp> {
    let requester = format!("system:bootstrap:{}", machine.token().id());
    let log = scene.site.manager.process.log().text();
    let lines = log.lines().filter(|line| line.contains(&requester));
    lines
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["fields"]["message"] == "decided")
        .filter(|line| line["fields"]["requester"] == requester)
        .map(|line| line["timestamp"].as_str().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn a_flood_from_one_bootstrap_token_does_not_delay_other_nodes() {
    // A separate cluster is used, because requests are listed in pages, and other tests watch one page.
    let scene = Scene::start(&SCENE.site, "flooded", json!({}));
    let own = scene.cluster.machine("floods").create();
    let other = scene.cluster.machine("is-not-delayed").create();
    let kubeconfig = own.bootstrap_kubeconfig();
    let request = scene.rightful(&other).to_json();
    // kubectl calls would take longer than the budget allows.
    std::thread::scope(|scope| {
        for part in 0..FLOODERS {
            let numbers = (part..FLOOD).step_by(FLOODERS);
            let flood: Vec<_> = numbers
                .map(|number| {
                    let mut request = request.clone();
                    let name = format!("kubelet-authenticator-flood-{number}");
                    request["metadata"]["name"] = name.into();
                    request
                })
                .collect();
            let kubectl = scene.cluster.control_plane().kubectl_with(&kubeconfig);
            scope.spawn(move || kubectl.create_objects(&flood));
        }
    });

    let name = scene.file(&other.bootstrap_kubeconfig(), &scene.rightful(&other));
    let issued = poll(PATIENCE, || is_issued(&scene.request(&name)).then_some(()));
    assert!(issued.is_some(), "{:#}", scene.request(&name));

    let decided_meanwhile = decided(&scene, &own).len();
    assert!(decided_meanwhile < FLOOD, "the budget holds nobody up");
    let wanted = usize::try_from(TOKEN_RATE.burst).unwrap() + 2 * PER_SECOND;
    let decided = poll(PATIENCE, || {
        Some(decided(&scene, &own)).filter(|all| all.len() >= wanted)
    });
    let decided = decided.expect("the controller does not process the flood again");
    let first = decided[0];
    for (before, at) in decided.iter().enumerate() {
        let seconds = at.duration_since(first).as_secs_f64();
        let allowed = f64::from(TOKEN_RATE.burst) + seconds / TOKEN_RATE.every.as_secs_f64();
        let count = f64::from(u32::try_from(before + 1).unwrap());
        assert!(count <= allowed + SLACK, "{count} after {seconds} s");
    }
}
