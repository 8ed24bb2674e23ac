//! Tests of the script for a first run in an AWS account, with moto server and the STS simulator.

use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, REGION};
use kubelet_authenticator_tests::page::repository;
use serde_json::Value;

/// The script's output on this instance. Also writes the output to the file `collected`.
fn probe(cloud: &Cloud, metadata: &str, files: &Scratch) -> String {
    let authorities = files.write("sts.pem", cloud.sts().ca_pem());
    let output = Command::new("python3")
        .arg(repository().join("tests/live/aws"))
        .args(["--on-instance", "--metadata", metadata, "--sts"])
        .arg(format!("{}/", cloud.sts().url().trim_end_matches('/')))
        .arg("--ca")
        .arg(authorities)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    files.write("collected", &text);
    text
}

/// The text that the script encodes between its marks.
fn decoded(collected: &str) -> String {
    let (_, rest) = collected.split_once("LIVE-BEGIN ").unwrap();
    let (text, _) = rest.split_once(" LIVE-END").unwrap();
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

/// Runs the script as the owner of the account.
fn operator(cloud: &Cloud, files: &Scratch, arguments: &str) -> (Output, String, Value) {
    let script = repository().join("tests/live/aws");
    let folder = files.path().display();
    let line = format!(
        "KUBELET_AUTHENTICATOR_LIVE_PAUSE=0.1 python3 '{}' {arguments} --collected '{folder}/collected' \
         --report '{folder}/report.md'",
        script.display()
    );
    let output = cloud.moto().shell(ACCOUNT, REGION, &line);
    let report = std::fs::read_to_string(files.join("report.md"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let facts = report.split("```json\n").nth(1).unwrap();
    let facts = facts.split("```").next().unwrap();
    let facts = serde_json::from_str(facts).unwrap();
    (output, report, facts)
}

#[test]
fn the_live_check_of_aws_passes_on_a_simulated_instance() {
    let cloud = Cloud::start();
    let instance = cloud.launch(&[]);
    let files = Scratch::new("live-aws");
    let found = decoded(&probe(&cloud, &instance.imds.url(), &files));
    // If a signature is wrong, STS repeats the signed headers in its response, and one of them is the session token.
    assert!(found.contains("SignatureDoesNotMatch"), "{found}");
    for secret in [
        &instance.credentials.secret_access_key,
        &instance.credentials.session_token,
    ] {
        assert!(!found.contains(secret.as_str()), "{found}");
    }

    let id = &instance.ec2.id;
    let (output, report, facts) = operator(&cloud, &files, &format!("--instance {id}"));

    assert!(output.status.success(), "{output:?}\n{report}");
    for row in [
        "| 1 | STS answers the signed call with 200 | ok | 200 |".to_owned(),
        format!(
            "| 1 | the user ID names account and instance | ok | {ACCOUNT}:aws:ec2-instance:{id} |"
        ),
        "| 5 | the name in EC2 and the host name have one first label | ok |".to_owned(),
        "| 8 | CloudTrail and GuardDuty | not checked |".to_owned(),
    ] {
        assert!(report.contains(&row), "{row}\n{report}");
    }
    for refused in ["wrong header", "16 minutes old", "cut token"] {
        let row = format!("| 3 | STS refuses a call: {refused} | ok | 403 ");
        assert!(report.contains(&row), "{row}\n{report}");
    }
    let named = &facts["probe"]["document"]["instanceId"];
    assert_eq!(named, id.as_str(), "{facts:#}");
}

#[test]
fn the_live_check_of_aws_ends_the_instance_that_it_starts() {
    let cloud = Cloud::start();
    let other = cloud.launch(&[]);
    let files = Scratch::new("live-aws-start");
    probe(&cloud, &other.imds.url(), &files);

    let (output, report, _) = operator(&cloud, &files, "--yes --ami ami-12345678");

    // The output is from another instance.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let row = "| 1 | the document names the instance | FAILED |";
    assert!(report.contains(row), "{report}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("Expected cost: less than 0.05 USD"), "{told}");
    let started = told
        .lines()
        .find_map(|line| line.strip_prefix("started "))
        .unwrap();
    assert_ne!(started, other.ec2.id);
    assert!(told.contains(&format!("terminated {started}")), "{told}");
    assert_eq!(cloud.moto().count("TerminateInstances"), 1);
}
