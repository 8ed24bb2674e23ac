//! Tests of the lifetime of a machine's bootstrap token.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{Timestamp, ToSpan as _};
use kubelet_authenticator_test_support::control_plane::KubeadmBinding;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::{Machine, WorkloadCluster};
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::json;

use crate::SITE;
use crate::stock::{POLICY, wait_until};

/// The expiry time of the token.
fn end(cluster: &WorkloadCluster, machine: &Machine) -> Timestamp {
    let name = format!("bootstrap-token-{}", machine.token().id());
    let words = ["get", "secret", &name, "--namespace", "kube-system"];
    let secret = cluster.control_plane().kubectl().json(words);
    let encoded = secret["data"]["expiration"].as_str().unwrap();
    let text = BASE64_STANDARD.decode(encoded).unwrap();
    String::from_utf8(text).unwrap().parse().unwrap()
}

/// Sets the Node of this Machine, as Cluster API does.
fn set_node(cluster: &WorkloadCluster, machine: &Machine) {
    let kind = "machines.cluster.x-k8s.io";
    let target = [
        kind,
        machine.name(),
        "-n",
        cluster.namespace(),
        "--subresource=status",
    ];
    let node = json!({"status": {"nodeRef": {"name": machine.node_name()}}});
    SITE.management.kubectl().patch(&target, &node);
}

/// Waits until the token no longer exists. Kubernetes deletes an expired token.
#[track_caller]
fn wait_until_deleted(cluster: &WorkloadCluster, machine: &Machine) {
    let name = format!("bootstrap-token-{}", machine.token().id());
    let words = ["get", "secret", &name, "--namespace", "kube-system"];
    let gone = poll(SWEPT, || {
        let left = cluster.control_plane().kubectl().run(words);
        let said = String::from_utf8_lossy(&left.stderr).into_owned();
        said.contains("NotFound").then_some(())
    });
    assert!(gone.is_some(), "{name} still exists");
}

#[test]
fn a_managed_token_is_extended_until_its_machine_is_deleted() {
    let [managed, ignored] = ["tokens", "tokens-ignored"].map(|namespace| {
        let cluster = Scene::unattended(&SITE, namespace);
        let machine = cluster.machine("lives").create();
        let before = end(&cluster, &machine);
        (cluster, machine, before)
    });

    let settings = json!({"autoApproveBindings": "Remove", "bootstrapTokens": "Ignore"});
    let ignoring = Scene::attend(&SITE, ignored.0, settings);
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = Scene::attend(&SITE, managed.0, settings);

    let extended = poll(SWEPT, || {
        let now = end(&scene.cluster, &managed.1);
        (now > managed.2 + 5.hours()).then_some(())
    });
    assert!(extended.is_some(), "the token is never extended");
    // The controller reports the condition at the end of a round, which also processes tokens.
    ignoring.wait_for_paths("True", "Closed", &[]);
    assert_eq!(end(&ignoring.cluster, &ignored.1), ignored.2);

    managed.1.remove();

    wait_until_deleted(&scene.cluster, &managed.1);
}

#[test]
fn tokens_are_extended_only_while_attestation_is_enforced() {
    let cluster = Scene::unattended(&SITE, "tokens-reported");
    cluster.control_plane().kubeadm_bootstrap_token_phase();
    let [joins, joined] = ["joins", "joined"].map(|name| cluster.machine(name).create());
    set_node(&cluster, &joined);
    let ends = |cluster: &WorkloadCluster| [&joins, &joined].map(|machine| end(cluster, machine));
    let before = ends(&cluster);

    // The default settings enforce attestation. The controller reports the condition at the end of a round, which also
    // processes tokens.
    let scene = Scene::attend(&SITE, cluster, json!({}));
    let open = [KubeadmBinding::NodeAutoapproveBootstrap.name()];
    scene.wait_for_paths("False", "AutoApproveBindingFound", &open);
    assert_eq!(ends(&scene.cluster), before);

    scene.change(&json!({"autoApproveBindings": "Remove"}));
    scene.wait_for_paths("False", "WaitingForRecords", &["joined"]);
    assert_eq!(ends(&scene.cluster), before);

    scene.join(&joined);
    let extended = poll(SWEPT, || {
        let now = ends(&scene.cluster);
        let mut both = now.iter().zip(before);
        let are_extended = both.all(|(now, before)| *now > before + 5.hours());
        are_extended.then_some(now)
    });
    let [extended, _] = extended.expect("the tokens are never extended");

    scene.change(&json!({"autoApproveBindings": "Report"}));
    wait_until_deleted(&scene.cluster, &joined);
    // Cluster API keeps the token valid until the Machine has a Node.
    assert_eq!(end(&scene.cluster, &joins), extended);
}

#[test]
fn extended_tokens_expire_when_the_authentication_is_deleted() {
    let cluster = Scene::unattended(&SITE, "tokens-given-up");
    let [joins, joined] = ["joins", "joined"].map(|name| cluster.machine(name).create());
    set_node(&cluster, &joined);
    let before = [&joins, &joined].map(|machine| end(&cluster, machine));
    let scene = Scene::attend(&SITE, cluster, json!({"autoApproveBindings": "Remove"}));
    scene.join(&joined);
    let extended = poll(SWEPT, || {
        let now = [&joins, &joined].map(|machine| end(&scene.cluster, machine));
        let mut both = now.iter().zip(before);
        let are_extended = both.all(|(now, before)| *now > before + 5.hours());
        are_extended.then_some(now)
    });
    let [extended, _] = extended.expect("the tokens are never extended");

    let namespace = scene.cluster.namespace();
    let words = ["delete", "kubeletauthentication", "prod-1", "-n", namespace];
    scene.management().ok(words);

    wait_until_deleted(&scene.cluster, &joined);
    wait_until(&scene, "validatingadmissionpolicybinding", POLICY, false);
    // Cluster API keeps the token valid until the Machine has a Node.
    assert_eq!(end(&scene.cluster, &joins), extended);
}
