//! Tests of attackers who can write to the whole workload cluster, but not to the controller.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use node_attestation_runtime::hardening::admission::POLICY_NAME;
use serde_json::json;

use crate::SCENE;

const BINDING: &str = "validatingadmissionpolicybinding";
const POLICY: &str = "validatingadmissionpolicy";

#[test]
fn a_weakened_policy_and_a_deleted_binding_are_restored() {
    // The shared cluster is not used, because its tests always need the policy.
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = Scene::start(&SCENE.site, "weakened", settings);
    scene.wait_for_paths("True", "Closed", &[]);
    let kubectl = scene.kubectl();
    let conditions = || {
        let policy = kubectl.json(["get", POLICY, POLICY_NAME]);
        policy["spec"]["matchConditions"].clone()
    };
    let made = conditions();
    let never = r#"[{"op":"add","path":"/spec/matchConditions/-",
        "value":{"name":"never","expression":"false"}}]"#;

    kubectl.ok(["patch", POLICY, POLICY_NAME, "--type=json", "-p", never]);

    let right = poll(SWEPT, || (conditions() == made).then_some(()));
    assert!(right.is_some(), "{:#}", conditions());

    kubectl.ok(["delete", BINDING, POLICY_NAME]);

    let bindings = ["get", BINDING, "--output=name"];
    let is_back = || kubectl.ok(bindings).contains(POLICY_NAME).then_some(());
    assert!(poll(SWEPT, is_back).is_some());
}
