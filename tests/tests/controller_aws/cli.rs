//! Tests of the AWS options on the command line, and of the errors about invalid options.

use std::path::PathBuf;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::controller::{inventory, settings};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

/// The options that `run` requires for any cluster. The CA files do not exist, so an error about them means that the
/// controller has not found an earlier error.
const CLUSTER: [&str; 5] = [
    "--workload-kubeconfig=no.kubeconfig",
    "--settings=settings.yaml",
    "--inventory=machines.yaml",
    "--ca-cert=no.crt",
    "--ca-key=no.key",
];

/// The files that a valid start of the controller needs.
struct Files {
    scratch: Scratch,
}

impl Files {
    /// Files with these AWS settings, for listed machines.
    fn listed(aws: &Value) -> Self {
        let scratch = Scratch::new("aws-cli");
        let spec = json!({"authorizedAttestors": ["aws"], "aws": aws});
        scratch.write("settings.yaml", settings(&spec));
        scratch.write("machines.yaml", inventory(&[]));
        Self { scratch }
    }

    /// Files with these AWS settings, for the instances that the settings select.
    fn found(aws: &Value) -> Self {
        let files = Self::listed(aws);
        let inventory = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "MachineInventory",
            "awsInstances": true,
        });
        files.scratch.write("machines.yaml", inventory.to_string());
        files
    }

    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new(program("node-attestation-controller"))
            .arg("run")
            .args(CLUSTER)
            .args(arguments)
            .env_clear()
            .envs(environment.iter().copied())
            .current_dir(self.scratch.path())
            .output()
            .unwrap()
    }
}

/// Complete settings that find instances by tags.
fn complete() -> Value {
    json!({
        "accounts": ["111122223333"], "regions": ["eu-west-1"], "requiredTags": {"cluster": "prod-1"},
    })
}

/// Asserts that the program exited with this code, printed nothing to standard output, and that its error contains all
/// `words`.
#[track_caller]
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(stderr.contains(word), "no {word:?} in {stderr}");
    }
}

#[track_caller]
fn assert_accepted(files: &Files, arguments: &[&str]) {
    assert_refused(&files.run(arguments, &[]), 3, &["no.crt", "No such file"]);
}

#[test]
fn the_valid_aws_settings_of_the_refusal_tests_are_accepted() {
    assert_accepted(&Files::listed(&json!({})), &[]);
    assert_accepted(&Files::listed(&json!({"rootVolumeCheck": false})), &[]);
    assert_accepted(&Files::found(&complete()), &[]);
    let mut named = complete();
    named["nodeName"] = json!("InstanceID");
    assert_accepted(&Files::found(&named), &[]);
}

#[test]
fn an_aws_inventory_requires_an_account_a_region_and_a_tag() {
    for field in ["accounts", "regions", "requiredTags"] {
        let mut aws = complete();
        aws.as_object_mut().unwrap().remove(field);

        let output = Files::found(&aws).run(&[], &[]);

        let words = format!("awsInstances: spec.aws.{field} in the --settings file requires");
        assert_refused(&output, 3, &["--inventory", &words]);
    }
}

#[test]
fn the_error_for_a_malformed_value_names_its_field() {
    for (field, value, place) in [
        (
            "accounts",
            json!(["1111-2222-3333"]),
            "spec.aws.accounts[0]: ",
        ),
        ("accounts", json!([111_122_223_333_u64]), "put it in quotes"),
        ("regions", json!(["Ireland"]), "spec.aws.regions[0]: "),
        (
            "requiredTags",
            json!({"": "prod-1"}),
            "spec.aws.requiredTags: ",
        ),
        ("nodeName", json!("hostname"), "spec.aws.nodeName: "),
    ] {
        let mut aws = complete();
        aws[field] = value;

        assert_refused(&Files::found(&aws).run(&[], &[]), 3, &["--settings", place]);
    }
}

#[test]
fn the_error_for_a_malformed_option_has_the_required_format() {
    for (option, form) in [
        ("--aws-sts-endpoint=sts.internal", "REGION=ENDPOINT"),
        ("--aws-sts-endpoint=Ireland=sts.internal", "is not a region"),
        (
            "--aws-sts-endpoint=eu-west-1=https://sts.internal",
            "a lower-case host name",
        ),
        (
            "--aws-ec2-endpoint=eu-west-1=ec2.internal",
            "a URL with a host",
        ),
        ("--aws-allow-instance-profile=a/b", "<account>:<role>"),
        (
            "--aws-extra-document-version=2031 01 01",
            "such as 2017-09-30",
        ),
    ] {
        let (name, value) = option.split_once('=').unwrap();
        let output = Files::listed(&json!({})).run(&[option], &[]);
        assert_refused(&output, 2, &[name, &format!("'{value}'"), form]);
    }
}

#[test]
fn an_option_for_identities_of_a_management_cluster_is_refused() {
    for option in [
        "--allow-controller-identity-fallback",
        "--aws-sts-region=eu-west-1",
    ] {
        let output = Files::listed(&json!({})).run(&[option], &[]);
        let (name, _) = option.split_once('=').unwrap_or((option, ""));
        assert_refused(&output, 2, &["cannot be used with", name]);
    }
}

/// Runs the controller with this option, whose value is the path of a file with this content.
fn with_file(option: &str, content: Option<&[u8]>) -> (Files, PathBuf, Output) {
    let files = Files::listed(&json!({}));
    let path = files.scratch.join("given.pem");
    if let Some(content) = content {
        std::fs::write(&path, content).unwrap();
    }
    let option = format!("{option}={}", path.display());
    let output = files.run(&[&option], &[]);
    (files, path, output)
}

#[test]
fn an_additional_document_version_is_accepted_with_an_option() {
    let files = Files::listed(&json!({}));

    assert_accepted(&files, &["--aws-extra-document-version=2031-01-01"]);
}

#[test]
fn the_error_for_an_unusable_file_names_its_option() {
    let huge = vec![b'\n'; 1024 * 1024 + 1];
    for option in ["--aws-extra-signers", "--aws-endpoint-ca"] {
        for (content, words) in [
            (None, "No such file"),
            (Some(&b""[..]), ""),
            (Some(b"garbage"), ""),
            (Some(&[0xff, 0, 0xfe]), ""),
            (Some(&huge), "1048576 bytes"),
        ] {
            let (_files, path, output) = with_file(option, content);
            assert_refused(&output, 3, &[option, path.to_str().unwrap(), words]);
        }
    }
}

#[test]
fn an_endpoint_for_an_unknown_region_is_refused() {
    let endpoint = "--aws-sts-endpoint=xx-west-1=sts.internal";

    let output = Files::listed(&json!({})).run(&[endpoint], &[]);

    assert_refused(&output, 3, &["--aws-sts-endpoint", "xx-west-1"]);
}

#[test]
fn an_unusable_proxy_is_refused_without_its_password() {
    let proxy = [("HTTPS_PROXY", "socks5://user:hunter2@proxy.test")];

    let found = Files::found(&complete());
    let output = found.run(&[], &proxy);
    assert_refused(&output, 3, &["awsInstances", "HTTPS_PROXY"]);
    assert!(
        !String::from_utf8(output.stderr)
            .unwrap()
            .contains("hunter2")
    );

    let insecure = settings(&json!({"authorizedAttestors": ["insecure"]}));
    found.scratch.write("settings.yaml", insecure);
    found.scratch.write("machines.yaml", inventory(&[]));
    let output = found.run(&["--allow-insecure"], &proxy);
    assert_refused(&output, 3, &["no.crt"]);
}
