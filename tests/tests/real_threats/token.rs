//! Who holds a bootstrap token, or sees all requests.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{PATIENCE, is_answered, is_issued};

use crate::SCENE;
use kubelet_authenticator_tests::fleet::kubelet;

/// More than a token may have looked at in a minute.
const FLOOD: usize = 200;

#[test]
fn a_bootstrap_token_asks_for_another_nodes_name() {
    let own = SCENE.cluster.machine("token-own").create();
    let other = SCENE.cluster.machine("token-other").create();
    let application = SCENE.stamped(other.node_name(), own.provider_id());

    let name = SCENE.file(&own.bootstrap_kubeconfig(), &application);

    SCENE.assert_denied(&name, "NodeNameMismatch");
}

#[test]
fn a_bootstrap_token_claims_a_machine_that_has_not_joined() {
    let own = SCENE.cluster.machine("claims-own").create();
    let unjoined = SCENE.cluster.machine("claims-unjoined").create();

    let name = SCENE.file(&own.bootstrap_kubeconfig(), &SCENE.rightful(&unjoined));

    SCENE.assert_denied(&name, "TokenOfAnotherMachine");
    SCENE.join(&unjoined);
}

#[test]
fn a_bootstrap_token_of_a_worker_asks_for_a_control_plane_node() {
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
fn whoever_sees_all_requests_files_a_copy_with_a_token_of_his_own() {
    let victim = SCENE.cluster.machine("copied").create();
    let own = SCENE.cluster.machine("copier").create();
    let seen = SCENE.rightful(&victim).to_json();
    let mut copy = seen.clone();
    copy["metadata"]["name"] = "kubelet-authenticator-copy".into();

    let plane = SCENE.cluster.control_plane();
    let kubectl = plane.kubectl_with(own.bootstrap_kubeconfig());
    kubectl.apply_object(&copy);

    SCENE.assert_denied("kubelet-authenticator-copy", "TokenOfAnotherMachine");
}

#[test]
fn a_pod_with_the_nodes_network_asks_with_a_key_of_its_own_while_the_node_is_up() {
    let machine = SCENE.cluster.machine("with-pod").create();
    let kubelet = kubelet(&SCENE.cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();

    let name = SCENE.file(&machine.bootstrap_kubeconfig(), &SCENE.rightful(&machine));

    SCENE.assert_waits("with-pod", &name, "IdentityLive");
    assert_eq!(SCENE.record("with-pod")["spec"]["generation"], 1);
    kubelet.wait_for_lease_renewal();
    assert!(!is_answered(&SCENE.request(&name)));
}

#[test]
fn a_bootstrap_token_floods_the_controller_and_delays_nobody_else() {
    let own = SCENE.cluster.machine("floods").create();
    let other = SCENE.cluster.machine("is-not-delayed").create();
    let plane = SCENE.cluster.control_plane();
    let flood: Vec<_> = (0..FLOOD)
        .map(|number| {
            let claimed = format!("generic:///prod-1/nowhere-{number}");
            SCENE.stamped("nowhere", &claimed).to_json()
        })
        .collect();
    let kubectl = plane.kubectl_with(own.bootstrap_kubeconfig());
    kubectl.create_objects(&flood);

    let name = SCENE.file(&other.bootstrap_kubeconfig(), &SCENE.rightful(&other));

    let issued = poll(PATIENCE, || is_issued(&SCENE.request(&name)).then_some(()));
    assert!(issued.is_some(), "{:#}", SCENE.request(&name));
}
