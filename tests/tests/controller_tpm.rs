//! Tests of the TPM options and settings of a controller without a management cluster, and of the errors about invalid
//! options and settings.

use std::process::Command;

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::controller::{inventory, settings};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

/// The options that `run` requires for any cluster. The CA key does not exist, so an error about the key means that the
/// controller has not found an earlier error.
const CLUSTER: [&str; 6] = [
    "run",
    "--workload-kubeconfig=no.kubeconfig",
    "--settings=settings.yaml",
    "--inventory=machines.yaml",
    "--ca-cert=ca.crt",
    "--ca-key=no.key",
];

/// The controller's output with these TPM settings and these key options.
fn said(tpm: &Value, keys: &[&str]) -> String {
    let folder = Scratch::new("tpm-cli");
    std::fs::create_dir(folder.path().join("keys")).unwrap();
    std::fs::write(folder.path().join("keys/current"), "0f".repeat(32)).unwrap();
    std::fs::write(folder.path().join("ca.crt"), "a certificate").unwrap();
    let spec = json!({"authorizedAttestors": ["tpm"], "tpm": tpm});
    folder.write("settings.yaml", settings(&spec));
    folder.write("machines.yaml", inventory(&[]));
    let output = Command::new(program("node-attestation-controller"))
        .args(CLUSTER)
        .args(keys)
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
fn assert_said(tpm: &Value, keys: &[&str], words: &str) {
    let said = said(tpm, keys);
    assert!(said.contains(words), "no {words:?} in {said}");
}

const KEYS: &[&str] = &["--tpm-challenge-keys=keys"];
const ACCEPTED: &str = "no.key: No such file";

#[test]
fn the_valid_tpm_settings_of_the_refusal_tests_are_accepted() {
    assert_said(&json!({"pcrPolicy": {"allowed": []}}), KEYS, ACCEPTED);
    assert_said(&json!({}), KEYS, ACCEPTED);
}

#[test]
fn invalid_tpm_settings_are_reported() {
    for (settings, words) in [
        (
            json!({"pcrPolcy": {"allowed": []}}),
            "settings.yaml is invalid: spec.tpm.pcrPolcy: is not a field",
        ),
        (
            json!({"pcrPolicy": {"mode": "Enforce"}}),
            "settings.yaml is invalid: spec.tpm.pcrPolicy.mode: was removed: ",
        ),
        (
            json!({"endorsementKeys": {"allowList": [{"machine": "m1", "ekSha256": "0f"}]}}),
            "spec.tpm.endorsementKeys.allowList[0].ekSha256: ",
        ),
        (
            json!({"endorsementKeys": {"allowList": [
                {"providerID": "metal3://", "ekSha256": "0f".repeat(32)},
            ]}}),
            "spec.tpm.endorsementKeys.allowList[0].providerID: must be a provider ID",
        ),
        (
            json!({"endorsementKeys": {"configMaps": ["rack-1"]}}),
            "spec.tpm.endorsementKeys.configMaps: references objects in a management cluster",
        ),
        (
            json!({"endorsementKeys": {"requireCA": ["none"]}}),
            "spec.tpm.endorsementKeys.requireCA[0]: ",
        ),
        // The verifier parses certificates, but the schema does not.
        (
            json!({"endorsementKeys": {"requireCA": ["-----BEGIN CERTIFICATE-----"]}}),
            "requireCA[0]",
        ),
    ] {
        assert_said(&settings, KEYS, words);
    }
}

#[test]
fn the_error_names_unusable_challenge_keys() {
    assert_said(&json!({}), &[], "--tpm-challenge-keys");
    let said = "cannot read --tpm-challenge-keys elsewhere/current";
    assert_said(&json!({}), &["--tpm-challenge-keys=elsewhere"], said);
}
