//! Tests that the demo prints all its steps.

use kubelet_authenticator_tests::demo;

#[test]
fn the_embedded_aws_demo_ends_as_described() {
    demo::tell("aws", "embedded");
}

#[test]
fn the_embedded_tpm_demo_ends_as_described() {
    demo::tell("tpm", "embedded");
}

#[test]
fn the_embedded_insecure_demo_ends_as_described() {
    demo::tell("insecure", "embedded");
}
