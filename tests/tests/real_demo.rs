//! The demo tells the same story on real Kubernetes.

use kubelet_authenticator_tests::demo;

#[test]
fn the_demo_of_instances_ends_as_told() {
    let story = demo::tell("aws", "real");

    assert!(story.contains("the attacker's now"), "{story}");
    assert!(story.contains(".compute.internal   Ready"), "{story}");
}

#[test]
fn the_demo_of_machines_with_tpms_ends_as_told() {
    let story = demo::tell("tpm", "real");

    assert!(story.contains("the attacker's now"), "{story}");
    assert!(story.contains("node/control-plane-1   Ready"), "{story}");
}

#[test]
fn the_demo_of_machines_that_prove_nothing_ends_as_told() {
    let story = demo::tell("insecure", "real");

    assert!(story.contains("the attacker's now"), "{story}");
    assert!(story.contains("node/control-plane-1   Ready"), "{story}");
}

#[test]
fn the_demo_of_tenants_with_accounts_of_their_own_ends_as_told() {
    demo::tell("aws-tenants", "cluster-api");
}

#[test]
fn the_demo_of_a_cluster_of_cluster_api_ends_as_told() {
    demo::tell("tpm", "cluster-api");
}
