//! The AWS options of the command line, and the errors for invalid ones.

use std::path::PathBuf;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::program;

/// The options that `run` requires for any cluster. The files do not exist: an attempt to read them proves that no
/// earlier error was found.
const CLUSTER: [&str; 6] = [
    "--workload-kubeconfig",
    "no.kubeconfig",
    "--ca-cert",
    "no.crt",
    "--ca-key",
    "no.key",
];

/// The complete options of discovered instances.
const FOUND: [&str; 5] = [
    "--attestor=aws",
    "--aws-inventory",
    "--aws-account=111122223333",
    "--aws-region=eu-west-1",
    "--aws-required-tag=cluster=prod-1",
];

/// The options of listed instances.
const LISTED: [&str; 2] = ["--attestor=aws", "--inventory=no.yaml"];

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(program("node-attestation-controller"))
        .arg("run")
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

/// Asserts that it ended with this code, printed nothing, and named all of `words`.
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
fn assert_wrong_usage(arguments: &[&str], words: &[&str]) {
    assert_refused(&run(arguments, &[]), 2, words);
}

#[track_caller]
fn assert_right_usage(arguments: &[&str]) {
    let output = run(&[&CLUSTER, arguments].concat(), &[]);
    assert_refused(&output, 3, &["no.crt", "No such file"]);
}

/// `arguments` without those that begin with `prefix`.
fn without<'a>(arguments: &[&'a str], prefix: &str) -> Vec<&'a str> {
    let rest = arguments.iter().filter(|it| !it.starts_with(prefix));
    rest.copied().collect()
}

#[test]
fn what_the_refusals_are_one_change_away_from_is_accepted() {
    assert_right_usage(&LISTED);
    assert_right_usage(&FOUND);
    assert_right_usage(&[&FOUND[..], &["--aws-node-name=instance-id"]].concat());
    assert_right_usage(&[&LISTED[..], &["--aws-cluster-name=prod-1"]].concat());
    assert_right_usage(&[&LISTED[..], &["--aws-any-root-volume"]].concat());
}

#[test]
fn each_option_without_what_it_needs_names_that() {
    let found = |prefix| [&CLUSTER, &without(&FOUND, prefix)[..]].concat();
    for (arguments, missing) in [
        (found("--attestor"), "--attestor <PROVIDER>"),
        (found("--aws-account"), "--aws-account <ACCOUNT>"),
        (found("--aws-region"), "--aws-region <REGION>"),
        (
            found("--aws-required-tag"),
            "--aws-required-tag <KEY=VALUE>",
        ),
        (found("--aws-inventory"), "--aws-inventory|--inventory"),
        (FOUND.to_vec(), "--workload-kubeconfig <FILE>"),
        (vec!["--attestor=aws"], "--workload-kubeconfig <FILE>"),
    ] {
        assert_wrong_usage(
            &arguments,
            &["required arguments were not provided", missing],
        );
    }
    for option in [
        "--aws-account=111122223333",
        "--aws-region=eu-west-1",
        "--aws-required-tag=a=b",
        "--aws-cluster-name=prod-1",
        "--aws-node-name=instance-id",
        "--aws-any-root-volume",
    ] {
        let arguments = [&CLUSTER[..], &["--inventory=no.yaml", option]].concat();
        assert_wrong_usage(&arguments, &["--attestor <PROVIDER>"]);
    }
}

#[test]
fn options_that_contradict_each_other_are_both_named() {
    for (more, words) in [
        (
            "--inventory=no.yaml",
            "'--aws-inventory' cannot be used with '--inventory <FILE>'",
        ),
        (
            "--allow-insecure",
            "'--attestor <PROVIDER>' cannot be used with '--allow-insecure'",
        ),
        (
            "--cluster=default/prod-1",
            "'--attestor <PROVIDER>' cannot be used with",
        ),
    ] {
        assert_wrong_usage(&[&CLUSTER, &FOUND[..], &[more]].concat(), &[words]);
    }
}

#[test]
fn a_value_of_another_form_is_named_with_the_form_that_it_should_have() {
    for (option, form) in [
        ("--attestor=gcp", "[possible values: aws, tpm]"),
        ("--aws-account=1111-2222-3333", "twelve digits"),
        ("--aws-region=Ireland", "such as eu-west-1"),
        ("--aws-required-tag=cluster", "KEY=VALUE"),
        ("--aws-required-tag==prod-1", "KEY=VALUE"),
        (
            "--aws-node-name=hostname",
            "[possible values: private-dns-name, instance-id]",
        ),
        ("--aws-sts-endpoint=sts.internal", "REGION=ENDPOINT"),
        ("--aws-sts-endpoint=Ireland=sts.internal", "no region"),
        (
            "--aws-sts-endpoint=eu-west-1=https://sts.internal",
            "a lower-case host name",
        ),
        (
            "--aws-ec2-endpoint=eu-west-1=ec2.internal",
            "a URL with a host",
        ),
        ("--aws-allow-instance-profile=a/b", "<account>:<role>"),
    ] {
        let (name, value) = option.split_once('=').unwrap();
        let arguments = [&CLUSTER, &without(&LISTED, name)[..], &[option]].concat();
        assert_wrong_usage(&arguments, &[name, &format!("'{value}'"), form]);
    }
}

/// Runs the controller with this option, whose value is the path of a file with this content.
fn with_file(option: &str, content: Option<&[u8]>) -> (Scratch, PathBuf, Output) {
    let scratch = Scratch::new("aws-cli");
    let path = scratch.join("given.pem");
    if let Some(content) = content {
        std::fs::write(&path, content).unwrap();
    }
    let option = format!("{option}={}", path.display());
    let output = run(&[&CLUSTER, &LISTED[..], &[&option]].concat(), &[]);
    (scratch, path, output)
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_option() {
    let huge = vec![b'\n'; 1024 * 1024 + 1];
    for option in ["--aws-extra-signers", "--aws-endpoint-ca"] {
        for (content, words) in [
            (None, "No such file"),
            (Some(&b""[..]), ""),
            (Some(b"garbage"), ""),
            (Some(&[0xff, 0, 0xfe]), ""),
            (Some(&huge), "1048576 bytes"),
        ] {
            let (_scratch, path, output) = with_file(option, content);
            assert_refused(&output, 3, &[option, path.to_str().unwrap(), words]);
        }
    }
}

#[test]
fn an_endpoint_of_a_region_that_is_none_is_refused() {
    let endpoint = "--aws-sts-endpoint=xx-west-1=sts.internal";

    let output = run(&[&CLUSTER, &LISTED[..], &[endpoint]].concat(), &[]);

    assert_refused(&output, 3, &["--aws-sts-endpoint", "xx-west-1"]);
}

#[test]
fn an_unusable_proxy_is_refused_without_its_password() {
    let proxy = [("HTTPS_PROXY", "socks5://user:hunter2@proxy.test")];

    let output = run(&[&CLUSTER, &LISTED[..]].concat(), &proxy);
    assert_refused(&output, 3, &["--attestor aws", "HTTPS_PROXY"]);
    assert!(
        !String::from_utf8(output.stderr)
            .unwrap()
            .contains("hunter2")
    );

    let insecure = ["--allow-insecure", "--inventory=no.yaml"];
    let output = run(&[&CLUSTER, &insecure[..]].concat(), &proxy);
    assert_refused(&output, 3, &["no.crt"]);
}
