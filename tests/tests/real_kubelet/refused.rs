//! Tests of kubelets that do not get a certificate: a metric of the kubelet reports the reason.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::ControlPlane;

use crate::node::{Cluster, Machine, Node, conditions, wait_for_exit_code};

const PLUGIN: &str = "kubelet-authenticator-insecure";

const DENIED: Machine = Machine::new("denied-1", "denie1");

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let plane = ControlPlane::start();
    Cluster::start(plane, &[DENIED])
});

#[test]
fn the_kubelet_metric_shows_exit_code_12_for_a_denied_request() {
    let plane = &CLUSTER.plane;
    // The token belongs to a machine that has neither the requested name nor the requested provider ID.
    let another = Machine {
        name: "another-1",
        ..DENIED
    };
    let node = Node::new(plane, PLUGIN, another);

    let kubelet = node.start();
    wait_for_exit_code(&kubelet, "12");

    let requests = node.requests();
    assert_eq!(
        conditions(&requests[0]),
        [("Denied".to_owned(), "ProviderIdOfAnotherMachine".to_owned())]
    );
    wait_for_exit_code(&kubelet, "17");
    assert_eq!(node.requests().len(), 1, "a denied node keeps asking");
    let log = kubelet.log();
    assert!(log.contains("ProviderIdOfAnotherMachine"), "{log}");
}
