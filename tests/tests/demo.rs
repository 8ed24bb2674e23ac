//! The demo tells its whole story.

use kubelet_authenticator_tests::demo;

#[test]
fn the_embedded_demo_of_instances_ends_as_told() {
    demo::tell("aws", "embedded");
}

#[test]
fn the_embedded_demo_of_machines_with_tpms_ends_as_told() {
    demo::tell("tpm", "embedded");
}

#[test]
fn the_embedded_demo_of_machines_that_prove_nothing_ends_as_told() {
    demo::tell("insecure", "embedded");
}
