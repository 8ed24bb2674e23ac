//! Tests of kubelets whose plugin is newer than the controller.

use kubelet_attestation::version::SUPPORTED_VERSIONS_ANNOTATION;
use kubelet_authenticator_test_support::control_plane::ControlPlane;

use crate::node::{Machine, Node, conditions, controller, prepare, started};

const PLUGIN: &str = "plugin_under_test";
const CONTROLLER: &str = "null-attestation-controller";
const UNSUPPORTED: &str = "UnsupportedAttestationVersion";

fn pair(condition: &str, reason: &str) -> (String, String) {
    (condition.to_owned(), reason.to_owned())
}

#[test]
fn a_newer_plugin_falls_back_to_the_controllers_evidence_version() {
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
