//! The lifetime of a machine's bootstrap token.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{Timestamp, ToSpan as _};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::{Machine, WorkloadCluster};
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::json;

use crate::SITE;

/// The expiration of the token.
fn end(cluster: &WorkloadCluster, machine: &Machine) -> Timestamp {
    let name = format!("bootstrap-token-{}", machine.token().id());
    let words = ["get", "secret", &name, "--namespace", "kube-system"];
    let secret = cluster.control_plane().kubectl().json(words);
    let encoded = secret["data"]["expiration"].as_str().unwrap();
    let text = BASE64_STANDARD.decode(encoded).unwrap();
    String::from_utf8(text).unwrap().parse().unwrap()
}

#[test]
fn a_managed_token_is_extended_until_its_machine_is_deleted() {
    let [managed, ignored] = ["tokens", "tokens-ignored"].map(|namespace| {
        let cluster = Scene::unattended(&SITE, namespace);
        let machine = cluster.machine("lives").create();
        let before = end(&cluster, &machine);
        (cluster, machine, before)
    });

    let ignoring = Scene::attend(&SITE, ignored.0, json!({"bootstrapTokens": "Ignore"}));
    let scene = Scene::attend(&SITE, managed.0, json!({}));

    let extended = poll(SWEPT, || {
        let now = end(&scene.cluster, &managed.1);
        (now > managed.2 + 5.hours()).then_some(())
    });
    assert!(extended.is_some(), "the token is never extended");
    // Reported at the end of a round, which includes tokens.
    ignoring.wait_for_paths("True", "Closed", &[]);
    assert_eq!(end(&ignoring.cluster, &ignored.1), ignored.2);

    managed.1.remove();

    // Kubernetes deletes an expired token.
    let name = format!("bootstrap-token-{}", managed.1.token().id());
    let words = ["get", "secret", &name, "--namespace", "kube-system"];
    let gone = poll(SWEPT, || {
        let left = scene.kubectl().run(words);
        let said = String::from_utf8_lossy(&left.stderr).into_owned();
        said.contains("NotFound").then_some(())
    });
    assert!(gone.is_some(), "the token of a removed Machine lives on");
}
