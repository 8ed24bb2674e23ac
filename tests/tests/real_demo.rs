//! Tests that the demo runs the same steps with a real API server.

use kubelet_authenticator_tests::demo;

#[test]
fn the_aws_demo_ends_as_described() {
    let story = demo::tell("aws", "real");

    assert!(story.contains("the attacker's now"), "{story}");
    assert!(story.contains(".compute.internal   Ready"), "{story}");
}

#[test]
fn the_tpm_demo_ends_as_described() {
    let story = demo::tell("tpm", "real");

    assert!(story.contains("the attacker's now"), "{story}");
    assert!(story.contains("node/control-plane-1   Ready"), "{story}");
}

#[test]
fn the_insecure_demo_ends_as_described() {
    let story = demo::tell("insecure", "real");

    assert!(story.contains("the attacker's now"), "{story}");
    assert!(story.contains("node/control-plane-1   Ready"), "{story}");
}

#[test]
fn the_demo_of_tenants_with_separate_accounts_ends_as_described() {
    demo::tell("aws-tenants", "cluster-api");
}

#[test]
fn the_cluster_api_demo_ends_as_described() {
    demo::tell("tpm", "cluster-api");
}
