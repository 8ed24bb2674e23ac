//! How long a machine's bootstrap token lives.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{Timestamp, ToSpan as _};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::{Machine, WorkloadCluster};
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::json;

use crate::SITE;

/// When the token ends.
fn end(cluster: &WorkloadCluster, machine: &Machine) -> Timestamp {
    let name = format!("bootstrap-token-{}", machine.token().id());
    let words = ["get", "secret", &name, "--namespace", "kube-system"];
    let secret = cluster.control_plane().kubectl().json(words);
    let encoded = secret["data"]["expiration"].as_str().unwrap();
    let text = BASE64_STANDARD.decode(encoded).unwrap();
    String::from_utf8(text).unwrap().parse().unwrap()
}

#[test]
fn the_token_of_a_machine_outlives_its_term_and_that_of_a_removed_machine_does_not() {
    let cluster = Scene::unattended(&SITE, "tokens");
    let [lives, leaves, pool] = ["lives", "leaves", "of-nobody"].map(|name| {
        let machine = cluster.machine(name).create();
        let end = end(&cluster, &machine);
        (machine, end)
    });
    leaves.0.remove();
    pool.0.remove();

    let scene = Scene::attend(&SITE, cluster, json!({}));

    let extended = poll(SWEPT, || {
        let now = end(&scene.cluster, &lives.0);
        (now > lives.1).then_some(now)
    });
    let extended = extended.expect("the token is never extended");
    assert!(extended > lives.1 + 5.hours(), "{extended}");
    scene.wait_for_paths("True", "Closed", &[]);
    for (machine, before) in [leaves, pool] {
        assert_eq!(end(&scene.cluster, &machine), before);
    }

    lives.0.remove();

    // Kubernetes deletes a token that has ended.
    let name = format!("bootstrap-token-{}", lives.0.token().id());
    let words = ["get", "secret", &name, "--namespace", "kube-system"];
    let gone = poll(SWEPT, || {
        let left = scene.kubectl().run(words);
        let said = String::from_utf8_lossy(&left.stderr).into_owned();
        said.contains("NotFound").then_some(())
    });
    assert!(gone.is_some(), "the token of a removed Machine lives on");
}

#[test]
fn tokens_that_are_to_be_ignored_end_when_they_did() {
    let cluster = Scene::unattended(&SITE, "tokens-ignored");
    let machine = cluster.machine("lives").create();
    let before = end(&cluster, &machine);

    let scene = Scene::attend(&SITE, cluster, json!({"bootstrapTokens": "Ignore"}));

    // Said at the end of a round, of which tokens are a part.
    scene.wait_for_paths("True", "Closed", &[]);
    assert_eq!(end(&scene.cluster, &machine), before);
}
