//! Tests of the scripts for a first run in an AWS account, with moto server and the STS simulator.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::moto::NitroTpm;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance, REGION};
use kubelet_authenticator_tests::page::repository;
use serde_json::Value;

/// The tag of the instances that the script starts.
const TAG: &str = "kubelet-authenticator-live";

/// A TPM that does not exist.
const NO_TPM: &str = "/nonexistent/tpmrm0";

/// The output of the script for this instance, at the boot with this ID. Also appends the output to the file
/// `collected`.
fn probe(cloud: &Cloud, instance: &Instance, files: &Scratch, boot: &str, tpm: &str) -> String {
    let authorities = files.write("sts.pem", cloud.sts().ca_pem());
    let output = Command::new("python3")
        .arg(repository().join("tests/live/aws-instance"))
        .args(["--metadata", &instance.imds.url(), "--tpm", tpm, "--sts"])
        .arg(format!("{}/", cloud.sts().url().trim_end_matches('/')))
        .arg("--ca")
        .arg(authorities)
        .arg("--boot-id")
        .arg(files.write("boot", boot))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let before = std::fs::read_to_string(files.join("collected")).unwrap_or_default();
    files.write("collected", format!("{before}{text}"));
    text
}

/// The text that the script encodes between its marks.
fn decoded(collected: &str) -> String {
    let (_, rest) = collected.split_once("LIVE-BEGIN ").unwrap();
    let (text, _) = rest.split_once(" LIVE-END").unwrap();
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

/// Runs these commands of a shell as the owner of the account. `$live` is the script.
fn shell(cloud: &Cloud, commands: &str) -> Output {
    let script = repository().join("tests/live/aws");
    let line = format!(
        "export KUBELET_AUTHENTICATOR_LIVE_PAUSE=0.1; live='{}'\n{commands}",
        script.display()
    );
    cloud.moto().shell(ACCOUNT, REGION, &line)
}

/// Runs the script as the owner of the account.
fn operator(cloud: &Cloud, files: &Scratch, arguments: &str) -> (Output, String, Value) {
    let (folder, signers) = (files.path().display(), cloud.signers());
    let line = format!(
        "python3 \"$live\" {arguments} --collected '{folder}/collected' --signers '{}' --report '{folder}/report.md'",
        signers.display()
    );
    let output = shell(cloud, &line);
    let report = std::fs::read_to_string(files.join("report.md"))
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let facts = report.split("```json\n").nth(1).unwrap();
    let facts = facts.split("```").next().unwrap();
    let facts = serde_json::from_str(facts).unwrap();
    (output, report, facts)
}

/// The instance that the script started, according to its output.
fn started(told: &str) -> &str {
    let mut lines = told.lines();
    lines
        .find_map(|line| line.strip_prefix("started "))
        .unwrap_or_else(|| panic!("{told}"))
}

/// Sets the document of an instance that was stopped and started again 5 seconds after its launch.
fn start_again(cloud: &Cloud, instance: &mut Instance) {
    let launched = humantime::parse_rfc3339(&instance.ec2.launched).unwrap();
    let launched = launched + Duration::from_secs(5);
    instance.ec2.launched = humantime::format_rfc3339_millis(launched).to_string();
    cloud.set_document_version(instance, "2017-09-30");
}

#[test]
fn the_live_check_of_aws_passes_on_a_simulated_instance() {
    let cloud = Cloud::start();
    let mut instance = cloud.launch(&[]);
    let files = Scratch::new("live-aws");
    let found = decoded(&probe(&cloud, &instance, &files, "first", NO_TPM));
    // If a signature is wrong, STS repeats the signed headers in its response, and one of them is the session token.
    assert!(found.contains("SignatureDoesNotMatch"), "{found}");
    for secret in [
        &instance.credentials.secret_access_key,
        &instance.credentials.session_token,
    ] {
        assert!(!found.contains(secret.as_str()), "{found}");
    }
    probe(&cloud, &instance, &files, "rebooted", NO_TPM);
    start_again(&cloud, &mut instance);
    probe(&cloud, &instance, &files, "started", NO_TPM);

    let id = &instance.ec2.id;
    let arguments = format!("--instance {id} --restart");
    let (output, report, facts) = operator(&cloud, &files, &arguments);

    assert!(output.status.success(), "{output:?}\n{report}");
    for row in [
        "| 1 | STS answers the signed call with 200 | ok | 200 |".to_owned(),
        format!(
            "| 1 | the user ID names account and instance | ok | {ACCOUNT}:aws:ec2-instance:{id} |"
        ),
        "| 4 | a reboot keeps pendingTime and LaunchTime | noted | yes |".to_owned(),
        "| 4 | a stop and start give a new pendingTime | ok |".to_owned(),
        "| 5 | the name in EC2 and the host name have one first label | ok |".to_owned(),
        "| 6 | the role can be assumed, and describes the instance | not checked |".to_owned(),
        "| 8 | CloudTrail and GuardDuty | not checked | by hand".to_owned(),
        "| 1 | STS answers a call from another host, as from the controller | not checked |"
            .to_owned(),
        "| 3 | STS refuses an expired token | not checked | by hand".to_owned(),
    ] {
        assert!(report.contains(&row), "{row}\n{report}");
    }
    for when in ["the launch", "a reboot", "a stop and start"] {
        for what in [
            "| 2 | the rsa2048 signature verifies, and is of the document",
            "| 4 | pendingTime and LaunchTime are at most 60 s apart",
            "| 4 | root volume and first interface are at most 60 s apart",
        ] {
            let row = format!("{what}, after {when} | ok |");
            assert!(report.contains(&row), "{row}\n{report}");
        }
    }
    for refused in ["wrong header", "16 minutes old", "cut token"] {
        let row = format!("| 3 | STS refuses a call: {refused} | ok | 403 ");
        assert!(report.contains(&row), "{row}\n{report}");
    }
    for kind in ["rsa-2048", "ecc-sec-p384"] {
        let what = "GetInstanceTpmEkPub has a known error code without a TPM";
        let row = format!("| 7 | {what} ({kind}) | ok | UnsupportedOperation |");
        assert!(report.contains(&row), "{row}\n{report}");
    }
    let named = &facts["probe"]["document"]["instanceId"];
    assert_eq!(named, id.as_str(), "{facts:#}");
    for action in ["RebootInstances", "StopInstances", "StartInstances"] {
        assert_eq!(cloud.moto().count(action), 1, "{action}");
    }
}

#[test]
fn the_live_check_of_aws_compares_the_keys_of_a_nitro_tpm() {
    let cloud = Cloud::start();
    let instance = cloud.launch(&[]);
    let tpm = Arc::new(Swtpm::start());
    cloud.moto().give_tpm(&instance.ec2.id, NitroTpm::of(&tpm));
    let files = Scratch::new("live-aws-tpm");
    let address = tpm.address().to_string();
    probe(&cloud, &instance, &files, "first", &address);

    let arguments = format!("--instance {}", instance.ec2.id);
    let (output, report, _) = operator(&cloud, &files, &arguments);

    assert!(output.status.success(), "{output:?}\n{report}");
    for row in [
        "| 4 | times after a reboot, and after a stop and start | not checked | needs --restart |",
        "| 7 | GetInstanceTpmEkPub returns the key of the guest (rsa-2048) | ok |",
        "| 7 | GetInstanceTpmEkPub returns the key of the guest (ecc-sec-p384) | ok |",
    ] {
        assert!(report.contains(row), "{row}\n{report}");
    }
    assert_eq!(cloud.moto().count("StopInstances"), 0);
}

#[test]
fn the_live_check_of_aws_ends_the_instance_that_it_starts() {
    let cloud = Cloud::start();
    let other = cloud.launch(&[]);
    let files = Scratch::new("live-aws-start");
    probe(&cloud, &other, &files, "first", NO_TPM);

    let (output, report, _) = operator(&cloud, &files, "--yes --ami ami-12345678");

    // The output is from another instance, and only from one boot.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for row in [
        "| 1 | the document names the instance | FAILED |",
        "| 4 | the probe gives a result after a reboot | FAILED |",
    ] {
        assert!(report.contains(row), "{row}\n{report}");
    }
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("Expected cost: less than 0.05 USD"), "{told}");
    let started = started(&told);
    assert_ne!(started, other.ec2.id);
    assert!(told.contains(&format!("terminated {started}")), "{told}");
    assert_eq!(cloud.moto().count("TerminateInstances"), 1);
    let data = cloud.moto().ec2(ACCOUNT, REGION).user_data(started);
    assert_eq!(data.matches("shutdown -h +25").count(), 2, "{data}");
    assert!(data.len() < 16 * 1024, "{}", data.len());
}

#[test]
fn the_live_check_of_aws_names_a_type_whose_cost_it_does_not_know() {
    let cloud = Cloud::start();

    let output = shell(&cloud, "python3 \"$live\" --type m6i.large");

    // Without --yes, the script only prints the cost.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let cost = "Expected cost: one m6i.large for about 15 minutes, at most 1 hour, ";
    assert!(told.starts_with(cost), "{told}");
    assert!(told.contains("Look up the price of m6i.large"), "{told}");
    assert!(!told.contains("USD"), "{told}");
    assert_eq!(cloud.moto().count("RunInstances"), 0);
}

#[test]
fn an_interrupted_live_check_of_aws_ends_its_instance() {
    let cloud = Cloud::start();
    let files = Scratch::new("live-aws-interrupted");
    let out = files.join("out");

    let line = format!(
        "cd '{}'\n\
         python3 \"$live\" --yes --ami ami-12345678 >out 2>&1 & job=$!\n\
         until grep -q '^started' out || ! kill -0 \"$job\"; do sleep 0.1; done\n\
         kill -TERM \"$job\"; code=0; wait \"$job\" || code=$?; exit \"$code\"",
        files.path().display()
    );
    let output = shell(&cloud, &line);

    let told = std::fs::read_to_string(out).unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}\n{told}");
    let started = started(&told);
    assert!(told.contains(&format!("terminated {started}")), "{told}");
    let instance = cloud.moto().ec2(ACCOUNT, REGION).instance(started);
    assert_eq!(instance.state, "terminated");
}

#[test]
fn the_cleanup_of_the_live_check_ends_only_its_own_instances() {
    let cloud = Cloud::start();
    let ec2 = cloud.moto().ec2(ACCOUNT, REGION);
    let (own, other) = (ec2.run(&[(TAG, "0123")]), ec2.run(&[("Name", TAG)]));
    // The script was killed before it started the instance again.
    ec2.stop(&own.id);

    let output = shell(&cloud, "python3 \"$live\" --clean");

    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(told, format!("terminated {}\n", own.id));
    assert_eq!(ec2.instance(&own.id).state, "terminated");
    assert_eq!(ec2.instance(&other.id).state, "running");
}

#[test]
fn the_live_check_verifies_documents_that_aws_signed() {
    let verify = |region: &str| {
        let documents = "controller/aws/src/document/tests/published";
        Command::new("python3")
            .arg(repository().join("tests/live/aws-verify"))
            .args(["--region", region])
            .arg(repository().join(documents).join("us-west-2.b64"))
            .output()
            .unwrap()
    };

    let output = verify("us-west-2");
    assert!(output.status.success(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["region"], "us-west-2");

    for other in ["us-west-1", "nowhere-1"] {
        let output = verify(other);
        assert_eq!(output.status.code(), Some(1), "{other}: {output:?}");
        assert!(output.stdout.is_empty(), "{other}: {output:?}");
    }
}
