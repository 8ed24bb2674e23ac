//! Tests of a Cluster whose CA Secret has no key.

use kubelet_authenticator_test_support::control_plane::KubeadmBinding;
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::is_issued;
use kubelet_authenticator_tests::fleet::{authorize, condition_of};
use kubelet_authenticator_tests::scene::Scene;
use serde_json::json;

use crate::SITE;
use crate::serving;
use crate::stock::{POLICY, file, is_there, request, wait_until};

const BINDING: &str = "clusterrolebinding";
const POLICY_BINDING: &str = "validatingadmissionpolicybinding";

/// Removes the key from the Secret, and waits for the condition.
#[track_caller]
fn lose_key(scene: &Scene) {
    let plane = scene.cluster.control_plane();
    scene.cluster.write_ca(plane.ca().certificate_pem(), None);
    let object =
        scene
            .authentication
            .wait_for(scene.management(), "Ready", "False", "CAKeyNotFound");
    assert_eq!(
        condition_of(&object, "Ready")["message"],
        "Secret prod-1-ca has no tls.key, and the controller has no external signer, so the controller does not answer requests \
         from the Cluster. Put the CA's key into the Secret, or start the controller with --signer-endpoint if another \
         program holds the key"
    );
}

fn put_key_back(scene: &Scene) {
    let ca = scene.cluster.control_plane().ca();
    let key = &ca.pair().key_pem;
    scene.cluster.write_ca(ca.certificate_pem(), Some(key));
}

#[test]
fn a_cluster_without_its_ca_key_never_begins_enforcement() {
    let cluster = Scene::unattended(&SITE, "keyless");
    let auto_approve = KubeadmBinding::NodeAutoapproveBootstrap;
    cluster.control_plane().install_bindings(&[auto_approve]);
    let machine = cluster.machine("stock").create();
    cluster.write_ca(cluster.control_plane().ca().certificate_pem(), None);
    // The Cluster has no Nodes, so if it were served, attestation would be enforced immediately.
    let spec = json!({"autoApproveBindings": "Remove"});
    let authentication = authorize(&SITE.management, &cluster, &["aws"], spec);
    let scene = Scene {
        site: SITE.clone(),
        cluster,
        authentication,
    };

    lose_key(&scene);

    let token = machine.bootstrap_kubeconfig();
    let said = file(&scene, &token, &request("as-before", "stock"), None);
    assert!(!said.contains("kubelet-authenticator"), "{said}");
    let issued = scene.answer("as-before");
    assert!(is_issued(&issued), "{issued:#}");
    scene.authentication.touch(scene.management(), "Ready");
    assert!(is_there(&scene, BINDING, auto_approve.name()));
    assert!(!is_there(&scene, POLICY_BINDING, POLICY));

    put_key_back(&scene);
    wait_until(&scene, BINDING, auto_approve.name(), false);
    scene.wait_for_paths("True", "Closed", &[]);
}

#[test]
fn a_cluster_that_loses_its_ca_key_stays_enforced_and_requests_wait() {
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = Scene::start(&SITE, "key-lost", settings);
    let address = [203, 0, 113, 9];
    let joined = scene.cluster.machine("joined").create();
    let node = scene.join(&joined);
    let late = scene.cluster.machine("late").create();
    let token = late.bootstrap_kubeconfig();
    scene.wait_for_paths("True", "Closed", &[]);

    lose_key(&scene);

    let refused = Some("denied request");
    file(&scene, &token, &request("stock", "late"), refused);
    let plane = scene.cluster.control_plane();
    let kubectl = plane.kubectl_with(&node);
    kubectl.create_object(&serving::request("serves", "joined", address));
    let client = scene.file(&token, &scene.rightful(&late));
    // The test waits until a later request in a different cluster has its answer.
    let served = Scene::start(&SITE, "key-kept", json!({}));
    let sentinel = served.cluster.machine("sentinel").create();
    let sentinel = served.file(
        &sentinel.bootstrap_kubeconfig(),
        &served.rightful(&sentinel),
    );
    let joined = served.answer(&sentinel);
    assert!(is_issued(&joined), "{joined:#}");
    for name in ["serves", &client] {
        assert_unanswered(Later::answer(&joined), || scene.request(name));
    }

    put_key_back(&scene);
    let issued = scene.answer(&client);
    assert!(is_issued(&issued), "{issued:#}");
    scene.assert_denied("serves", "ServingNameNotReported");
    file(&scene, &token, &request("stock-again", "late"), refused);
}
