//! Tests of kubelets without evidence. These kubelets have only the bootstrap token of their machine.

use std::sync::LazyLock;

use base64::prelude::*;
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};

use serde_json::json;

use crate::node::{Cluster, Machine, Node, conditions};

const PLUGIN: &str = "kubelet-authenticator-insecure";

const JOINS: Machine = Machine::new("joins-1", "joins1");
const PERSON: Machine = Machine::new("person-1", "perso1");
const SHARED: Machine = Machine::new("shared-1", "share1");
const BESIDE: Machine = Machine::new("beside-1", "besid1");

/// The cluster and the controller for all tests in this module. Each test has a separate machine.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let plane = ControlPlane::builder()
        .controllers(Controllers::Default)
        .start();
    Cluster::start(plane, &[JOINS, PERSON, SHARED, BESIDE])
});

#[test]
fn a_first_join_registers_a_node_and_renews_its_lease() {
    let plane = &CLUSTER.plane;
    let node = Node::new(plane, PLUGIN, JOINS);

    let mut kubelet = node.start();
    kubelet.wait_until_registered();
    kubelet.wait_until_ready();
    kubelet.wait_for_lease_renewal();

    let requests = node.requests();
    let [request] = requests.as_slice() else {
        panic!("{requests:#?}")
    };
    assert_eq!(request["spec"]["username"], "system:bootstrap:joins1");
    assert_eq!(
        request["spec"]["signerName"],
        "cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure"
    );
    assert_eq!(
        conditions(request),
        [("Approved".to_owned(), "NodeNameClaimed".to_owned())]
    );
    assert!(request["status"]["certificate"].is_string());
    let calls = kubelet.metrics();
    assert!(
        calls.sum(crate::node::PLUGIN_CALLS, &[("code", "0")]) >= 1.0,
        "{}",
        calls.text()
    );
    println!("the kubelet's log of the join:\n{}", kubelet.log());

    // A restarted kubelet does not send a new request.
    kubelet.restart();
    kubelet.wait_for_log("Successfully registered node");
    kubelet.wait_for_lease_renewal();
    assert_eq!(node.requests(), requests);
}

#[test]
fn an_attested_node_has_exactly_the_permissions_of_a_node() {
    let plane = &CLUSTER.plane;
    let another_node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other-1"}});
    let another_secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "of-another-node", "namespace": "kube-system"},
    });
    plane.kubectl().apply_object(&another_node);
    plane.kubectl().apply_object(&another_secret);
    let folder = plane.directory("person");
    let node = Node::new(plane, PLUGIN, PERSON)
        .setting(
            "stateDirectory",
            &folder.join("store").display().to_string(),
        )
        .setting("nodeName", PERSON.name);
    let kubectl = plane.kubectl_with(node.kubeconfig());

    let who = kubectl.json(["auth", "whoami"]);
    let user = &who["status"]["userInfo"];
    assert_eq!(user["username"], "system:node:person-1");
    assert_eq!(
        user["groups"],
        json!(["system:nodes", "system:authenticated"])
    );
    let uid = user["uid"].as_str().unwrap();
    assert!(uid.len() == 34 && uid.ends_with(".1"), "{uid}");

    kubectl.apply_object(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "person-1"},
    }));
    let refused = |arguments: &[&str], reason: &str| {
        let output = kubectl.run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = !output.status.success() && complaint.contains(reason);
        assert!(expected, "{arguments:?}: {complaint}");
    };
    let secret = ["get", "secret", "-n", "kube-system", "of-another-node"];
    refused(
        &secret,
        "no relationship found between node 'person-1' and this object",
    );
    refused(&["get", "node", "other-1"], "only its own Node object");
    let changed = folder.join("other-1.json");
    std::fs::write(&changed, another_node.to_string()).unwrap();
    let write = [
        "replace",
        "--raw",
        "/api/v1/nodes/other-1",
        "-f",
        changed.to_str().unwrap(),
    ];
    refused(&write, "is not allowed to modify node \"other-1\"");
    refused(
        &["get", "clusterroles"],
        "cannot list resource \"clusterroles\"",
    );
    assert_eq!(node.requests().len(), 1);
}

#[test]
fn kube_controller_manager_does_not_change_requests_for_our_signers() {
    let plane = &CLUSTER.plane;
    let node = Node::new(plane, PLUGIN, BESIDE);
    let kubelet = node.start();
    kubelet.wait_until_ready();
    let ours = node.requests();

    // After kube-controller-manager has answered this request, its approver and its signers have also processed the
    // project's earlier requests.
    let its_own = plane.client_certificate("system:node:its-own", Some("system:nodes"));
    plane.install_bindings(&[KubeadmBinding::NodeAutoapproveCertificateRotation]);
    let (request, _) = certificate_request(&Subject::node("its-own"), None);
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "its-own"},
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
            "request": BASE64_STANDARD.encode(request),
        },
    });
    let requester = plane.kubeconfig(User::Certificate(its_own));
    plane.kubectl_with(requester).create_object(&object);
    plane.wait_for_csr("its own with a certificate", |csr| {
        csr["metadata"]["name"] == "its-own" && csr["status"]["certificate"].is_string()
    });

    assert_eq!(node.requests(), ours);
    let [request] = ours.as_slice() else {
        panic!("{ours:#?}")
    };
    assert_eq!(
        conditions(request),
        [("Approved".to_owned(), "NodeNameClaimed".to_owned())]
    );
}
