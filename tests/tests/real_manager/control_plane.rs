//! Tests of nodes that renew with the built-in signer: the first control-plane node, and exempt Nodes.

use kubelet_authenticator_test_support::control_plane::KubeadmBinding;
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::scene::Scene;
use serde_json::json;

use crate::SITE;
use crate::stock::{POLICY, file, is_there, request};

/// The kubeconfig that `kubeadm init` writes for a node.
pub fn of_kubeadm(scene: &Scene, node_name: &str) -> std::path::PathBuf {
    let user = format!("system:node:{node_name}");
    let plane = scene.cluster.control_plane();
    plane.client_cert_kubeconfig(&user, Some("system:nodes"))
}

#[test]
fn the_first_control_plane_node_renews_without_blocking_enforcement() {
    let cluster = Scene::unattended(&SITE, "first-node");
    let plane = cluster.control_plane().clone();
    plane.install_bindings(&KubeadmBinding::ALL);
    cluster.machine("cp-1").control_plane().create();
    cluster.machine("worker-1").create();
    for name in ["cp-1", "worker-1"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        plane.kubectl().create_object(&node);
    }
    let settings = json!({"autoApproveBindings": "Remove", "exemptNodes": []});
    let scene = Scene::attend(&SITE, cluster, settings);
    let words = ["2 Nodes have no node identity", "cp-1, worker-1"];
    scene.wait_for_paths("False", "WaitingForRecords", &words);

    scene.change(&json!({"exemptNodes": ["ControlPlane"]}));
    let words = [
        "1 Nodes have no node identity",
        ": worker-1; 1 exempt Nodes can renew without evidence: cp-1",
    ];
    scene.wait_for_paths("False", "WaitingForRecords", &words);

    plane.kubectl().ok(["delete", "node", "worker-1"]);
    scene.change(&json!({"bootstrapTokens": "Ignore"}));
    let words = ["1 exempt Nodes can renew without evidence: cp-1"];
    scene.wait_for_paths("True", "Closed", &words);
    for open in [
        KubeadmBinding::NodeAutoapproveBootstrap,
        KubeadmBinding::NodeAutoapproveCertificateRotation,
    ] {
        assert!(!is_there(&scene, "clusterrolebinding", open.name()));
    }

    file(
        &scene,
        &of_kubeadm(&scene, "cp-1"),
        &request("renewal", "cp-1"),
        None,
    );
    let renewed = scene.answer("renewal");
    assert!(is_issued(&renewed), "{renewed:#}");
    assert_eq!(
        reason_of(&renewed, "Approved"),
        Some("ControlPlaneRenewal"),
        "{renewed:#}"
    );

    let worker = of_kubeadm(&scene, "worker-1");
    let said = file(
        &scene,
        &worker,
        &request("of-worker", "worker-1"),
        Some("denied request"),
    );
    assert!(
        said.contains("renew through kubelet-authenticator"),
        "{said}"
    );
    let binding = "validatingadmissionpolicybinding";
    scene.kubectl().ok(["delete", binding, POLICY]);
    file(&scene, &worker, &request("of-worker", "worker-1"), None);
    scene.assert_denied("of-worker", "UnattestedBuiltInRequest");
}

#[test]
fn an_exempt_node_renews_without_delaying_enforcement() {
    let cluster = Scene::unattended(&SITE, "exempt");
    let plane = cluster.control_plane().clone();
    plane.install_bindings(&KubeadmBinding::ALL);
    let machine = cluster.machine("own").create();
    // This Node does not belong to a Machine.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "windows-1"}});
    plane.kubectl().create_object(&node);
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = Scene::attend(&SITE, cluster, settings);
    scene.wait_for_paths("False", "WaitingForRecords", &["windows-1"]);

    scene.change(&json!({"exemptNodes": ["windows-1"]}));

    let words = ["1 exempt Nodes can renew without evidence: windows-1"];
    scene.wait_for_paths("True", "Closed", &words);
    let windows = of_kubeadm(&scene, "windows-1");
    file(&scene, &windows, &request("renewal", "windows-1"), None);
    let renewed = scene.answer("renewal");
    assert!(is_issued(&renewed), "{renewed:#}");
    let reason = reason_of(&renewed, "Approved");
    assert_eq!(reason, Some("ExemptRenewal"), "{renewed:#}");

    let refused = Some("denied request");
    let another = of_kubeadm(&scene, "windows-2");
    file(&scene, &another, &request("another", "windows-2"), refused);
    let token = machine.bootstrap_kubeconfig();
    file(&scene, &token, &request("by-token", "windows-1"), refused);
    let refused = Some("can only create a node CSR with CN=system:node:windows-1");
    file(&scene, &windows, &request("as-another", "own"), refused);
}

#[test]
fn a_second_certificate_of_an_exempt_node_is_reported() {
    let cluster = Scene::unattended(&SITE, "exempt-twice");
    let plane = cluster.control_plane().clone();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "windows-1"}});
    plane.kubectl().create_object(&node);
    let settings = json!({"autoApproveBindings": "Remove", "exemptNodes": ["windows-1"]});
    let scene = Scene::attend(&SITE, cluster, settings);
    let exempt = "1 exempt Nodes can renew without evidence: windows-1";
    scene.wait_for_paths("True", "Closed", &[exempt]);
    let windows = of_kubeadm(&scene, "windows-1");

    for name in ["first", "second"] {
        let message = scene.wait_for_paths("True", "Closed", &[exempt]);
        assert!(!message.contains("two valid certificates"), "{message}");
        file(&scene, &windows, &request(name, "windows-1"), None);
        let issued = scene.answer(name);
        assert!(is_issued(&issued), "{issued:#}");
    }

    let words = "1 exempt names have two valid certificates";
    scene.wait_for_paths("True", "Closed", &[words, ": windows-1"]);
}
