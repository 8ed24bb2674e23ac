//! The TPM options of the command line, and the errors for invalid ones.

use std::process::Command;

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::program;

/// The options that `run` requires for any cluster. The key does not exist: an attempt to read it proves that no
/// earlier error was found.
const CLUSTER: [&str; 7] = [
    "run",
    "--workload-kubeconfig=no.kubeconfig",
    "--ca-cert=ca.crt",
    "--ca-key=no.key",
    "--inventory=no.yaml",
    "--attestor=tpm",
    "--tpm-challenge-keys=keys",
];

/// The controller's output for these settings, and for changed arguments: with another value, or omitted.
fn said(settings: &str, changes: &[&str]) -> String {
    let folder = Scratch::new("tpm-cli");
    std::fs::create_dir(folder.path().join("keys")).unwrap();
    std::fs::write(folder.path().join("keys/current"), "0f".repeat(32)).unwrap();
    std::fs::write(folder.path().join("ca.crt"), "a certificate").unwrap();
    std::fs::write(folder.path().join("tpm.yaml"), settings).unwrap();
    let is_changed = |argument: &&str| {
        let mut changes = changes.iter();
        changes.any(|change| argument.split('=').next() == change.split('=').next())
    };
    let kept = CLUSTER.iter().filter(|argument| !is_changed(argument));
    let given = changes.iter().filter(|change| change.contains('='));
    let output = Command::new(program("node-attestation-controller"))
        .args(kept)
        .args(given)
        .arg("--tpm-settings=tpm.yaml")
        .env_clear()
        .current_dir(folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(output.stdout.is_empty());
    stderr
}

#[track_caller]
fn assert_said(settings: &str, changes: &[&str], words: &str) {
    let said = said(settings, changes);
    assert!(said.contains(words), "no {words:?} in {said}");
}

const RECORD: &str = "pcrPolicy: {allowed: []}";
const ACCEPTED: &str = "no.key: No such file";

#[test]
fn what_the_refusals_are_one_change_away_from_is_accepted() {
    assert_said(RECORD, &[], ACCEPTED);
    assert_said("{}", &[], ACCEPTED);
}

#[test]
fn settings_that_mean_nothing_are_named() {
    for (settings, words) in [
        (
            "pcrPolcy: {allowed: []}",
            "tpm.yaml: there is no field pcrPolcy",
        ),
        (
            "pcrPolicy: {mode: Enforce}",
            "tpm.yaml: there is no field pcrPolicy.mode",
        ),
        (
            "endorsementKeys: {platform: AWS}",
            "tpm.yaml is not what `spec.tpm` is",
        ),
        (
            "endorsementKeys: {allowList: [{machine: m1, ekSha256: 0f}]}",
            "allowList[0]: ekSha256 is not 64 lower-case hexadecimal digits",
        ),
        (
            "endorsementKeys: {allowList: [{providerID: 'metal3://', ekSha256: 0f}]}",
            "allowList[0]: ",
        ),
        (
            "endorsementKeys: {configMaps: [rack-1]}",
            "configMaps are read by a controller with a management cluster",
        ),
        ("endorsementKeys: {requireCA: [none]}", "requireCA[0]"),
    ] {
        assert_said(settings, &[], words);
    }
}

#[test]
fn an_option_that_would_be_passed_over_is_refused() {
    let said = "--tpm-settings says nothing with --attestor aws";
    assert_said(RECORD, &["--attestor=aws"], said);
    let said = "--aws-cluster-name says nothing with --attestor tpm";
    assert_said(RECORD, &["--aws-cluster-name=prod-1"], said);
}

#[test]
fn keys_of_challenges_that_cannot_be_used_are_named() {
    assert_said(RECORD, &["--tpm-challenge-keys"], "--tpm-challenge-keys");
    let said = "cannot read --tpm-challenge-keys elsewhere/current";
    assert_said(RECORD, &["--tpm-challenge-keys=elsewhere"], said);
}
