//! Kubelets that do not get a certificate: their own metric says why.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::ControlPlane;
use serde_json::json;

use crate::node::{Cluster, Machine, Node, conditions, wait_for_exit_code};

const PLUGIN: &str = "kubelet-authenticator-insecure";

const DENIED: Machine = Machine::new("denied-1", "denie1");
// These are not in the inventory, so that nobody decides.
const FAILED: Machine = Machine::new("failed-1", "faile1");
const UNDECIDED: Machine = Machine::new("undecided-1", "undec1");

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let plane = ControlPlane::start();
    Cluster::start(plane, &[DENIED])
});

#[test]
fn a_denied_request_is_exit_code_12_in_the_kubelets_metric() {
    let plane = &CLUSTER.plane;
    // The token is that of another machine than the one whose name and provider ID are asked for.
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

#[test]
fn a_failed_request_is_exit_code_13_in_the_kubelets_metric() {
    let plane = &CLUSTER.plane;
    let node = Node::new(plane, PLUGIN, FAILED);

    let kubelet = node.start();
    let request = plane.wait_for_csr("of failed-1", |csr| {
        csr["spec"]["username"] == "system:bootstrap:faile1"
    });
    let name = request["metadata"]["name"].as_str().unwrap();
    let failed = json!({"status": {"conditions": [
        {"type": "Failed", "status": "True", "reason": "ByHand", "message": "an operator gave it up"},
    ]}});
    plane.kubectl().ok([
        "patch",
        "csr",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        &failed.to_string(),
    ]);

    wait_for_exit_code(&kubelet, "13");
    let log = kubelet.log();
    assert!(log.contains("an operator gave it up"), "{log}");
}

#[test]
fn a_request_that_nobody_decides_is_exit_code_11_in_the_kubelets_metric() {
    let plane = &CLUSTER.plane;
    let node = Node::new(plane, PLUGIN, UNDECIDED).setting("TIMEOUT_SECONDS", "2");

    let kubelet = node.start();
    wait_for_exit_code(&kubelet, "11");

    let requests = node.requests();
    let [request] = requests.as_slice() else {
        panic!("{requests:#?}")
    };
    assert_eq!(
        conditions(request),
        [],
        "a condition would keep a pending request from being collected"
    );
}
