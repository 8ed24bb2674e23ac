//! Tests of machines that join.

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::control_plane::{DEADLINE, User};
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::{Application, is_issued};
use kubelet_authenticator_tests::management::{Machine, Management, WorkloadCluster};
use kubelet_authenticator_tests::page;
use serde_json::json;

use crate::bed::{Manager, authorize, management};
use crate::requests::answer;

/// A Cluster with one machine, which does not need evidence.
fn served() -> (Management, Manager, WorkloadCluster, Machine) {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let machine = cluster.machine("m1").node_name("node-1").create();
    let manager = Manager::insecure(&management, &[]);
    let authentication = authorize(&management, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(management.kubectl());
    (management, manager, cluster, machine)
}

#[test]
fn an_unowned_token_joins_a_machine_after_an_operator_assigns_it() {
    let (management, _manager, cluster, machine) = served();
    let plane = cluster.control_plane();
    let token = plane.add_bootstrap_token("nobody", "0123456789abcdef");
    let by_token = plane.kubectl_with(plane.kubeconfig(User::Token(token.bearer())));
    let (node, id) = (machine.node_name(), machine.provider_id());
    let application = Application::claiming(node, id, Provider::INSECURE, None);

    by_token.create_object(&application.to_json());

    let name = application.name();
    let fields = format!("regarding.name={name},reason=MachineNotFound");
    let events = [
        "events.events.k8s.io",
        "-n",
        "default",
        "--field-selector",
        &fields,
    ];
    let kubectl = plane.kubectl();
    let event = kubectl.wait_for(&events, "MachineNotFound", DEADLINE, |_| true);
    assert_unanswered(Later::event(&event), || kubectl.json(["get", "csr", &name]));

    let assign = page::command("operate.md", "kubectl annotate machine ");
    let assign = assign.replace("prod-1-cp-0", "m1");
    let assign = assign.replace("tenant-a", "default");
    let assign = assign.replace("t8x2k9", "nobody");
    management.kubectl().ok(assign.split(' ').skip(1));
    let csr = answer(&cluster, &name);
    assert!(is_issued(&csr), "{csr:#}");
}
