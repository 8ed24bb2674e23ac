//! Tests that the controller closes the auto-approval paths, and keeps them closed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, KubeadmBinding, User};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{certificate_of, is_issued};
use kubelet_authenticator_tests::fleet::condition_of;
use kubelet_authenticator_tests::scene::{Scene, Site};
use serde_json::{Value, json};

use crate::SITE;
use crate::names::insecure;
use crate::stock::{POLICY, file, is_there, request, request_with_key, wait_until};

const BINDING: &str = "clusterrolebinding";
const POLICY_BINDING: &str = "validatingadmissionpolicybinding";

/// The bindings that approve kubelets without a review.
const OPEN: [KubeadmBinding; 2] = [
    KubeadmBinding::NodeAutoapproveBootstrap,
    KubeadmBinding::NodeAutoapproveCertificateRotation,
];

fn create_node(scene: &Scene, name: &str) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    scene.kubectl().create_object(&node);
}

#[test]
fn kubeadm_bindings_are_reported_then_removed_when_all_nodes_have_records() {
    let cluster = Scene::unattended(&SITE, "bindings");
    cluster.control_plane().kubeadm_bootstrap_token_phase();
    let scene = Scene::attend(&SITE, cluster, json!({}));

    let ways = OPEN.map(KubeadmBinding::name);
    scene.wait_for_paths("False", "AutoApproveBindingFound", &ways);

    let late = scene.cluster.machine("late").create();
    create_node(&scene, late.node_name());
    scene.join(&scene.cluster.machine("early").create());
    create_node(&scene, "early");
    scene.change(&json!({"autoApproveBindings": "Remove"}));
    let words = ["1 Nodes have no node identity", "late"];
    let message = scene.wait_for_paths("False", "WaitingForRecords", &words);
    assert!(!message.contains("early"), "{message}");
    for open in OPEN {
        assert!(is_there(&scene, BINDING, open.name()));
    }

    scene.join(&late);
    for open in OPEN {
        wait_until(&scene, BINDING, open.name(), false);
    }
    scene.wait_for_paths("True", "Closed", &[]);
    let kept = KubeadmBinding::KubeletBootstrap.name();
    assert!(is_there(&scene, BINDING, kept));

    scene
        .cluster
        .control_plane()
        .kubeadm_bootstrap_token_phase();
    for open in OPEN {
        wait_until(&scene, BINDING, open.name(), false);
    }
    scene.wait_for_paths("True", "Closed", &[]);
}

#[test]
fn returned_kubeadm_bindings_are_removed_within_a_minute_by_a_watch() {
    let site = Site::rarely_inspected();
    let scene = Scene::start(&site, "returns", json!({"autoApproveBindings": "Remove"}));
    scene.wait_for_paths("True", "Closed", &[]);

    for _ in 0..2 {
        scene
            .cluster
            .control_plane()
            .kubeadm_bootstrap_token_phase();

        let gone = poll(Duration::from_secs(60), || {
            let mut open = OPEN.iter();
            (!open.any(|one| is_there(&scene, BINDING, one.name()))).then_some(())
        });
        assert!(gone.is_some(), "the bindings are still there");
        let kept = KubeadmBinding::KubeletBootstrap.name();
        assert!(is_there(&scene, BINDING, kept));
    }
}

/// Joins a Node with this name like an attacker who has the bootstrap token. Kubernetes approves the request because of
/// kubeadm's bindings, and the attacker creates the Node with the certificate. Returns a kubeconfig with this
/// certificate.
#[track_caller]
fn join_rogue(plane: &ControlPlane, token: &Path, name: &str) -> PathBuf {
    let (request, key_pem) = request_with_key(&format!("join-{name}"), name);
    plane.kubectl_with(token).create_object(&request);
    let csr = plane.wait_for_csr("of the attacker, with a certificate", |csr| {
        csr["metadata"]["name"] == request["metadata"]["name"] && is_issued(csr)
    });
    let pair = KeyAndCertificate {
        certificate_pem: certificate_of(&csr).unwrap(),
        key_pem,
    };
    let rogue = plane.kubeconfig(User::Certificate(pair));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    plane.kubectl_with(&rogue).create_object(&node);
    rogue
}

#[test]
fn rogue_nodes_do_not_delay_enforcement_and_cannot_renew() {
    let cluster = Scene::unattended(&SITE, "rogue");
    let plane = cluster.control_plane().clone();
    plane.install_bindings(&OPEN);
    let machine = cluster.machine("own").create();
    let token = machine.bootstrap_kubeconfig();
    let mut rogue = join_rogue(&plane, &token, "rogue-1");
    let scene = Scene::attend(&SITE, cluster, json!({"autoApproveBindings": "Remove"}));
    // An attacker who has the token can join another Node before the operator deletes the previous Node.
    for (name, next) in [("rogue-1", "rogue-2"), ("rogue-2", "rogue-3")] {
        scene.wait_for_paths("False", "WaitingForRecords", &[name]);
        rogue = join_rogue(&plane, &token, next);
        scene.kubectl().ok(["delete", "node", name]);
    }
    scene.wait_for_paths("False", "WaitingForRecords", &["rogue-3"]);

    scene.change(&json!({"autoApproveBindings": "RemoveNow"}));

    let words = [
        "1 Nodes have no node identity",
        "cannot renew their certificates: rogue-3",
    ];
    scene.wait_for_paths("True", "Closed", &words);
    for open in OPEN {
        assert!(!is_there(&scene, BINDING, open.name()));
    }
    let refused = Some("denied request");
    file(&scene, &rogue, &request("renewal", "rogue-3"), refused);
    file(&scene, &token, &request("rogue-4", "rogue-4"), refused);
    scene.join(&machine);
}

#[test]
fn the_built_in_signer_refuses_a_bootstrap_token() {
    let settings = json!({"autoApproveBindings": "Remove", "exemptNodes": []});
    let scene = Scene::start(&SITE, "built-in", settings);
    let token = scene.cluster.machine("own").create().bootstrap_kubeconfig();
    scene.wait_for_paths("True", "Closed", &[]);

    let said = file(
        &scene,
        &token,
        &request("stock", "own"),
        Some("denied request"),
    );
    assert!(
        said.contains("join through kubelet-authenticator"),
        "{said}"
    );

    scene.kubectl().ok(["delete", POLICY_BINDING, POLICY]);
    file(&scene, &token, &request("unconfined", "own"), None);
    scene.assert_denied("unconfined", "UnattestedBuiltInRequest");

    wait_until(&scene, POLICY_BINDING, POLICY, true);
    file(
        &scene,
        &token,
        &request("again", "own"),
        Some("denied request"),
    );
}

#[test]
fn an_unset_mode_with_insecure_does_not_end_enforcement() {
    let scene = insecure("unset-mode", json!({"autoApproveBindings": "Remove"}));
    let token = scene.cluster.machine("own").create().bootstrap_kubeconfig();
    scene.wait_for_paths("True", "Closed", &[]);

    scene.change(&json!({"autoApproveBindings": null}));

    scene.wait_for_paths("True", "Closed", &[]);
    let refused = Some("denied request");
    file(&scene, &token, &request("unset", "own"), refused);
    // In contrast, `Report` ends enforcement.
    scene.change(&json!({"autoApproveBindings": "Report"}));
    file(&scene, &token, &request("reported", "own"), None);
}

#[test]
fn nodes_join_an_unmanaged_cluster_and_its_records_are_kept() {
    let scene = Scene::start(&SITE, "given-up", json!({"autoApproveBindings": "Remove"}));
    let machine = scene.cluster.machine("joined").create();
    let former = scene.join(&machine);
    create_node(&scene, "joined");
    scene.wait_for_paths("True", "Closed", &[]);
    assert!(is_there(&scene, POLICY_BINDING, POLICY));
    let record = scene.record("joined");
    let revoked = json!({"metadata": {"annotations": {
        "attestation.cluster.x-k8s.io/reset": record["spec"]["generation"].to_string(),
    }}});
    let name = record["metadata"]["name"].as_str().unwrap();
    let target = ["nodeidentity", name, "-n", scene.cluster.namespace()];
    scene.management().patch(&target, &revoked);
    scene.join(&machine);
    scene.refused_write(&former, "joined");

    let namespace = scene.cluster.namespace();
    let words = ["delete", "kubeletauthentication", "prod-1", "-n", namespace];
    scene.management().ok(words);

    wait_until(&scene, POLICY_BINDING, POLICY, false);
    wait_until(&scene, "validatingadmissionpolicy", POLICY, false);
    let token = scene.cluster.machine("other").create();
    let token = token.bootstrap_kubeconfig();
    file(&scene, &token, &request("stock-again", "other"), None);
    scene
        .cluster
        .control_plane()
        .install_bindings(&[KubeadmBinding::NodeAutoapproveBootstrap]);
    file(&scene, &token, &request("stock-approved", "other"), None);
    let issued = scene.answer("stock-approved");
    assert!(is_issued(&issued), "{issued:#}");
    assert_eq!(scene.record("joined")["spec"]["uid"], record["spec"]["uid"]);
    scene.refused_write(&former, "joined");
}

#[test]
fn a_cluster_whose_settings_are_created_again_is_enforced_again() {
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = Scene::start(&SITE, "created-again", settings);
    let token = scene.cluster.machine("own").create().bootstrap_kubeconfig();
    scene.wait_for_paths("True", "Closed", &[]);
    let namespace = scene.cluster.namespace();
    let words = ["kubeletauthentication", "prod-1", "-n", namespace];
    let mut object = scene.management().json([&["get"], &words[..]].concat());
    let fields = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
    ];
    for field in fields {
        object["metadata"][field] = Value::Null;
    }
    object["status"] = Value::Null;

    for number in 0..3 {
        scene.management().ok([&["delete"], &words[..]].concat());
        scene.management().create_object(&object);

        scene.wait_for_paths("True", "Closed", &[]);
        assert!(is_there(&scene, POLICY_BINDING, POLICY));
        let refused = Some("denied request");
        let name = format!("stock-{number}");
        file(&scene, &token, &request(&name, "own"), refused);
    }
}

/// Sends this request from a stock kubelet. The API server returns a warning, and the request gets a certificate, as in
/// a cluster without the controller.
#[track_caller]
fn goes_on_as_before(scene: &Scene, kubeconfig: &Path, name: &str, node_name: &str) {
    let said = file(scene, kubeconfig, &request(name, node_name), None);
    assert!(said.contains("Warning: "), "{said}");
    assert!(said.contains("through kubelet-authenticator"), "{said}");
    let issued = scene.answer(name);
    assert!(is_issued(&issued), "{issued:#}");
}

#[test]
fn nodes_join_and_renew_as_before_until_attestation_is_enforced() {
    let cluster = Scene::unattended(&SITE, "reported");
    let plane = cluster.control_plane().clone();
    plane.install_bindings(&OPEN);
    let late = cluster.machine("late").create();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "late"}});
    plane.kubectl().create_object(&node);
    let scene = Scene::attend(&SITE, cluster, json!({"autoApproveBindings": "Report"}));

    let mut words = OPEN.map(KubeadmBinding::name).to_vec();
    words.extend(["1 Nodes have no node identity", "late"]);
    scene.wait_for_paths("False", "AutoApproveBindingFound", &words);

    for open in OPEN {
        assert!(is_there(&scene, BINDING, open.name()));
    }
    let namespace = scene.cluster.namespace();
    let object = ["get", "kubeletauthentication", "prod-1", "-n", namespace];
    let ready = condition_of(&scene.management().json(object), "Ready");
    assert_eq!(ready["status"], "True", "{ready:#}");
    let token = late.bootstrap_kubeconfig();
    let node = plane.client_cert_kubeconfig("system:node:late", Some("system:nodes"));
    goes_on_as_before(&scene, &token, "join", "late");
    goes_on_as_before(&scene, &node, "renewal", "late");

    scene.change(&json!({"autoApproveBindings": "Remove"}));
    scene.wait_for_paths("False", "WaitingForRecords", &["late"]);
    goes_on_as_before(&scene, &node, "renewal-while-it-waits", "late");

    scene.join(&late);
    scene.wait_for_paths("True", "Closed", &[]);
    let refused = Some("denied request");
    file(&scene, &node, &request("too-late", "late"), refused);
    // A Node without a node identity does not open the path, even if the controller starts to serve the cluster again.
    create_node(&scene, "strange");
    scene.change(&json!({"bootstrapTokens": "Ignore"}));
    scene.wait_for_paths("True", "Closed", &[]);
    file(&scene, &token, &request("as-strange", "strange"), refused);

    scene.change(&json!({"autoApproveBindings": "Report"}));
    plane.install_bindings(&OPEN);
    scene.wait_for_paths("False", "AutoApproveBindingFound", &["strange"]);
    goes_on_as_before(&scene, &node, "renewal-after-all", "late");
}
