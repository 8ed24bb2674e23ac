//! Kubelets whose plugin is newer than the controller.

use kubelet_attestation::version::SUPPORTED_VERSIONS_ANNOTATION;
use kubelet_authenticator_test_support::control_plane::ControlPlane;

use crate::node::{Machine, Node, conditions, controller, prepare, started, wait_for_exit_code};

const PLUGIN: &str = "plugin_under_test";
const CONTROLLER: &str = "null-attestation-controller";
const UNSUPPORTED: &str = "UnsupportedAttestationVersion";

fn pair(condition: &str, reason: &str) -> (String, String) {
    (condition.to_owned(), reason.to_owned())
}

#[test]
fn a_newer_plugin_joins_with_one_new_request_in_the_version_that_the_controller_reads() {
    const NEWER: Machine = Machine::new("newer-1", "newer1");
    let plane = ControlPlane::start();
    prepare(&plane);
    let setup = controller(&plane, CONTROLLER, &[NEWER]);
    let _controller = started(&setup);
    let node = Node::new(&plane, PLUGIN, NEWER).variable("VERSIONS", "v2,v1");

    let kubelet = node.start();
    kubelet.wait_until_ready();

    let requests = node.requests();
    let [refused, issued] = requests.as_slice() else {
        panic!("{requests:#?}")
    };
    assert_eq!(conditions(refused), [pair("Failed", UNSUPPORTED)]);
    assert_eq!(
        refused["metadata"]["annotations"][SUPPORTED_VERSIONS_ANNOTATION],
        "v1"
    );
    assert_eq!(conditions(issued), [pair("Approved", "NodeNameClaimed")]);
    assert!(issued["status"]["certificate"].is_string());
}

#[test]
fn a_plugin_without_a_version_in_common_is_exit_code_16_in_the_kubelets_metric() {
    const TOO_NEW: Machine = Machine::new("too-new-1", "toonew");
    let plane = ControlPlane::start();
    prepare(&plane);
    let setup = controller(&plane, CONTROLLER, &[TOO_NEW]);
    let _controller = started(&setup);
    let node = Node::new(&plane, PLUGIN, TOO_NEW).variable("VERSIONS", "v2");

    let kubelet = node.start();
    wait_for_exit_code(&kubelet, "16");

    // The kubelet calls the plugin again, which may have filed its next request by now.
    let requests = node.requests();
    let failed = [pair("Failed", UNSUPPORTED)];
    let answered: Vec<_> = requests.iter().map(conditions).collect();
    let is_right = |one: &Vec<_>| one.is_empty() || *one == failed;
    assert!(answered.iter().any(|one| *one == failed), "{requests:#?}");
    assert!(answered.iter().all(is_right), "{requests:#?}");
}
