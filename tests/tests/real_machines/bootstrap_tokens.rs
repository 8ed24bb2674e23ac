//! Tests of the bootstrap tokens of MachinePools. Cluster API rotates these tokens.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::Order;

use kubelet_authenticator_tests::machines::{Machines, PATIENCE, Scene};

/// Waits until each of these nodes is ready, and has a record with its member's provider ID.
#[track_caller]
fn have_records(scene: &Scene, nodes: &[String]) {
    for node in nodes {
        scene.plane().wait_for_node_ready(node);
        let record = scene.record(node);
        let provider_id = format!("generic:///pooled/{node}");
        assert_eq!(record["spec"]["providerID"], provider_id, "{record:#}");
    }
}

#[test]
fn a_pool_grows_with_its_first_token_and_after_a_token_rotation() {
    let scene = Scene::attended("pooled", Machines::Insecure(Order::ProviderIdFirst));
    let pool = scene.cluster.machine_pool_of("pool-b", 0, scene.config());
    let first = poll(PATIENCE, || pool.token_id()).expect("a token");

    pool.scale(3);

    let three = pool.wait_until_running(3);
    have_records(&scene, &three);
    let replaced = || poll(PATIENCE, || pool.token_id().filter(|id| *id != first));
    let second = replaced().unwrap_or_else(|| panic!("{first} stays: {:#}", pool.get()));
    let gone = poll(PATIENCE, || {
        let secret = format!("bootstrap-token-{first}");
        let words = ["get", "secret", &secret, "-n", "kube-system"];
        (!scene.plane().kubectl().run(words).status.success()).then_some(())
    });
    assert!(gone.is_some(), "the token {first} stays");

    pool.scale(5);

    let five = pool.wait_until_running(5);
    have_records(&scene, &five);
    assert_eq!(scene.client_requests().len(), 5);
    let third = poll(PATIENCE, || pool.token_id().filter(|id| *id != second));
    assert!(third.is_some(), "{second} stays: {:#}", pool.get());
}
