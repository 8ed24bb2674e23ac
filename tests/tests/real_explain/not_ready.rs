//! Tests of requests in Clusters that the controller does not serve.

use kubelet_authenticator_tests::fleet::Authentication;
use kubelet_authenticator_tests::scene::Scene;
use serde_json::{Value, json};

use super::{SITE, admin, explained, key, of, run_as, scene};

/// The reason why the Cluster is not Ready, according to `explain` for a new request.
#[track_caller]
fn reason_of(scene: &Scene) -> String {
    let machine = scene.cluster.machine("m1").create();
    let name = scene.file(&machine.bootstrap_kubeconfig(), &of(&machine));

    let told = explained(scene, &name);

    assert_eq!(told["outcome"], "issued", "{told:#}");
    let reason = told["notReady"].as_str().unwrap().to_owned();
    let output = run_as(&admin(), &["explain", &name, "--cluster", &key(scene)]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (word, _) = reason.split_once(": ").unwrap();
    assert!(text.starts_with(&format!("Not ready: {word}: ")), "{text}");
    reason
}

fn stopped(scene: &Scene, reason: &str) {
    let kubectl = SITE.management.kubectl();
    let authentication = &scene.authentication;
    authentication.wait_for(kubectl, "Ready", "False", reason);
}

#[test]
fn a_request_in_a_paused_cluster_is_explained_with_the_pause() {
    let scene = scene("explain-paused");
    let Authentication { namespace, name } = &scene.authentication;
    let target = ["kubeletauthentications", name, "--namespace", namespace];
    let annotations = json!({"cluster.x-k8s.io/paused": ""});
    let paused = json!({"metadata": {"annotations": annotations}});
    SITE.management.kubectl().patch(&target, &paused);
    stopped(&scene, "Paused");

    assert_eq!(
        reason_of(&scene),
        "Paused: annotation cluster.x-k8s.io/paused is set"
    );
}

#[test]
fn a_request_in_a_cluster_with_the_ca_of_another_is_explained_with_it() {
    let [scene, other] = ["explain-shared-1", "explain-shared-2"].map(scene);
    let kubectl = SITE.management.kubectl();
    let secret = |scene: &Scene| format!("{}-ca", scene.authentication.name);
    let namespace = |scene: &Scene| scene.authentication.namespace.clone();
    let ca: Value = kubectl.json([
        "get",
        "secret",
        &secret(&other),
        "--namespace",
        &namespace(&other),
    ]);
    let (name, of) = (secret(&scene), namespace(&scene));
    let target = ["secret", &name, "--namespace", &of];
    kubectl.patch(&target, &json!({"data": ca["data"]}));
    stopped(&scene, "SharedCA");

    let reason = reason_of(&scene);

    assert!(
        reason.starts_with("SharedCA: a Cluster in another namespace has the private key"),
        "{reason}"
    );
}

#[test]
fn a_request_in_a_cluster_whose_ca_has_another_key_is_explained_with_it() {
    let [scene, other] = ["explain-mismatch-1", "explain-mismatch-2"].map(scene);
    let kubectl = SITE.management.kubectl();
    let name = format!("{}-ca", scene.authentication.name);
    let namespace = |scene: &Scene| scene.authentication.namespace.clone();
    let key: Value = kubectl.json(["get", "secret", &name, "--namespace", &namespace(&other)]);
    let of = namespace(&scene);
    let target = ["secret", &name, "--namespace", &of];
    let key = json!({"tls.key": key["data"]["tls.key"]});
    kubectl.patch(&target, &json!({"data": key}));

    stopped(&scene, "CAKeyMismatch");

    let reason = reason_of(&scene);

    assert!(
        reason.starts_with("CAKeyMismatch: the CA in Secret prod-1-ca is not accepted: "),
        "{reason}"
    );
}
