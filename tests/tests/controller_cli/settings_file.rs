//! Tests of the file in `run --settings`, and of the options that the file replaces.

use std::fs;
use std::path::Path;

use kubelet_authenticator_tests::controller::{PATIENCE, settings};
use serde_json::{Value, json};

use crate::{Files, assert_refused, run, stderr};

/// Asserts the error from `run` if the settings have this spec.
#[track_caller]
fn assert_spec_refused(spec: &Value, words: &[&str]) {
    let files = Files::new();
    files.scratch.write("settings.yaml", settings(spec));
    assert_refused(
        &files.run(),
        &[&["--settings", "settings.yaml"], words].concat(),
    );
}

#[test]
fn an_invalid_field_in_the_settings_is_reported_with_its_path() {
    let with = |field: &str, value: Value| {
        let mut spec = json!({"authorizedAttestors": ["insecure"]});
        spec[field] = value;
        spec
    };
    for (spec, words) in [
        (
            with("autoApproveBinding", json!("Remove")),
            [
                "spec.autoApproveBinding: is not a field",
                "autoApproveBindings",
            ],
        ),
        (
            with("servingAddressRanges", json!(["10.0.0.1/8"])),
            ["spec.servingAddressRanges[0]: ", "such as 10.0.0.0/8"],
        ),
        (
            with("adoption", json!("Allow")),
            ["spec.adoption: ", "Allow requires evidence"],
        ),
        (
            with("certificate", json!({"expirationSeconds": 60})),
            ["spec.certificate.expirationSeconds: ", "at least 600"],
        ),
    ] {
        assert_spec_refused(&spec, &words);
    }
}

#[test]
fn the_error_names_an_unknown_attestor() {
    let files = Files::new();
    let spec = json!({"authorizedAttestors": ["gcp"]});
    files.scratch.write("settings.yaml", settings(&spec));
    let mut arguments = files.arguments();
    arguments.retain(|argument| argument != "--allow-insecure");

    assert_refused(&run(arguments), &["no verifier for the attestor", "gcp"]);
}

#[test]
fn a_setting_that_needs_a_management_cluster_is_refused() {
    let aws = json!({"authorizedAttestors": ["aws"], "aws": {"serviceAccountIdentity": "nodes"}});
    assert_spec_refused(&aws, &["spec.aws.serviceAccountIdentity: "]);
    let keys = json!({"endorsementKeys": {"configMaps": ["rack-1"]}});
    let tpm = json!({"authorizedAttestors": ["tpm"], "tpm": keys});
    assert_spec_refused(
        &tpm,
        &["spec.tpm.endorsementKeys.configMaps: ", "allowList"],
    );
    let late = json!({"authorizedAttestors": ["tpm"], "tpm": {"lateProviderIDs": "Allow"}});
    assert_spec_refused(&late, &["spec.tpm.lateProviderIDs: "]);
}

#[test]
fn rendered_settings_start_a_controller() {
    for attestor in ["insecure", "aws", "tpm"] {
        let files = Files::new();
        let rendered = run([
            "render",
            "settings",
            "--cluster-name",
            "prod-1",
            "--attestor",
            attestor,
        ]);
        assert!(rendered.status.success(), "{}", stderr(&rendered));
        fs::write(files.path("settings.yaml"), &rendered.stdout).unwrap();

        let checked = run([
            "cluster".as_ref(),
            "check".as_ref(),
            "--settings".as_ref(),
            files.path("settings.yaml").as_os_str(),
        ]);

        let text = String::from_utf8(checked.stdout.clone()).unwrap();
        assert_eq!(checked.status.code(), Some(0), "{text}");
        let expected = format!("pass  settings: valid; prod-1 authorizes {attestor}\n");
        assert!(text.contains(&expected), "{text}");
        if attestor == "insecure" {
            let mut controller = files.start();
            controller.wait_for_log("watching", PATIENCE);
        }
    }
}

#[test]
fn settings_are_rendered_only_for_a_valid_name_and_attestor() {
    let render = |name: &str| {
        run([
            "render",
            "settings",
            "--attestor",
            "tpm",
            "--cluster-name",
            name,
        ])
    };
    assert_refused(
        &render("Prod"),
        &["these settings would be invalid", "spec.clusterName"],
    );
    assert!(render("prod-1").status.success());
}

#[test]
fn the_settings_check_reports_each_invalid_field() {
    let files = Files::new();
    let spec = json!({"authorizedAttestors": ["insecure"], "adopt": "Allow", "audiences": ["a b"]});
    files.scratch.write("settings.yaml", settings(&spec));

    let checked = run([
        "cluster".as_ref(),
        "check".as_ref(),
        "-ojson".as_ref(),
        "--settings".as_ref(),
        files.path("settings.yaml").as_os_str(),
    ]);

    assert_eq!(checked.status.code(), Some(20), "{}", stderr(&checked));
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let [check] = &checked["checks"].as_array().unwrap()[..] else {
        panic!("{checked:#}");
    };
    assert_eq!(
        (&check["name"], &check["state"]),
        (&json!("settings"), &json!("fail"))
    );
    let finding = check["finding"].as_str().unwrap();
    for words in ["spec.adopt: is not a field", "spec.audiences[0]: "] {
        assert!(finding.contains(words), "{finding}");
    }
}

#[test]
fn the_settings_check_includes_the_workload_cluster() {
    let files = Files::new();

    let checked = run([
        "cluster".as_ref(),
        "check".as_ref(),
        "-ojson".as_ref(),
        "--settings".as_ref(),
        files.path("settings.yaml").as_os_str(),
        "--workload-kubeconfig".as_ref(),
        files.path("admin.kubeconfig").as_os_str(),
    ]);

    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let checks = checked["checks"].as_array().unwrap();
    let names: Vec<_> = checks
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    let expected = [
        "settings",
        "identities",
        "kubeconfig",
        "workload-version",
        "workload-rights",
        "workload-user",
        "auto-approval",
        "serving-approvers",
        "requests",
        "evidence-versions",
    ];
    assert_eq!(names, expected);
    assert_eq!(checks[0]["state"], "pass");
}

/// The CHANGELOG, which lists the options of earlier builds.
fn changelog() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../CHANGELOG.md");
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_removed_option_is_an_error_with_its_replacement() {
    for (option, words) in [
        ("--attestor=aws", "spec:\n  authorizedAttestors: [aws]"),
        (
            "--serving-address-range=10.0.0.0/8",
            "  servingAddressRanges: [",
        ),
        ("--deny-built-in", "  autoApproveBindings: Remove"),
        ("--aws-inventory", "awsInstances: true"),
        (
            "--service-range=10.96.0.0/12",
            "serviceRanges: [10.96.0.0/12]",
        ),
        (
            "--cluster=a/b",
            "run --kubeconfig FILE --namespace NAMESPACE",
        ),
        ("--tpm-settings=tpm.yaml", "  tpm:"),
    ] {
        let files = Files::new();
        let mut arguments = files.arguments();
        arguments.push(option.into());

        let output = run(arguments);

        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let (name, _) = option.split_once('=').unwrap_or((option, ""));
        assert!(
            text.starts_with(&format!("error: {name} was removed\nhint: ")),
            "{text}"
        );
        assert!(text.contains(words), "{text}");
        assert!(
            changelog().contains(&format!("`{name}`")),
            "{name} is not in CHANGELOG.md"
        );
    }
}
