//! Tests of `explain` for an instance's request, with all checks that do not need AWS calls.

use std::process::Command;

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::cloud::{Cloud, OWNED};
use kubelet_authenticator_tests::controller::{Bed, request, settings, token_of_instance};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

/// The explanation of an instance's request with these options, and the services that the controller would have called.
fn explained(cloud: &Cloud, options: &[&str]) -> Value {
    let instances = vec![cloud.launched_an_hour_ago(&[OWNED])];
    let bed = Bed::instances(cloud, &instances);
    let token = token_of_instance(0);
    let mut object = request(&bed, cloud, &instances[0]).to_json();
    object["spec"]["username"] = format!("system:bootstrap:{token}").into();
    object["spec"]["groups"] = json!(["system:bootstrappers", "system:authenticated"]);
    let inventory = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineInventory",
        "machines": [{
            "name": "m1", "providerID": instances[0].provider_id(),
            "nodeName": instances[0].node_name(), "tokenID": token,
        }],
    });
    let scratch = Scratch::new("explain");
    let output = Command::new(program("node-attestation-controller"))
        .args(["explain", "-o", "json", "--file"])
        .arg(scratch.write("request.json", object.to_string()))
        .arg("--settings")
        .arg(scratch.write(
            "settings.yaml",
            settings(&json!({"authorizedAttestors": ["aws"]})),
        ))
        .arg("--inventory")
        .arg(scratch.write("machines.yaml", inventory.to_string()))
        .arg("--ca-cert")
        .arg(scratch.write("ca.crt", bed.server.ca_pem()))
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn outcomes(explanation: &Value) -> Vec<(&str, &str)> {
    let checks = explanation["checks"].as_array().unwrap().iter();
    checks
        .map(|one| {
            (
                one["name"].as_str().unwrap(),
                one["outcome"].as_str().unwrap(),
            )
        })
        .collect()
}

#[test]
fn explain_checks_the_document_and_skips_the_aws_calls() {
    let cloud = Cloud::start();
    let arguments = cloud.manager_arguments().into_iter();
    let signers = arguments
        .skip_while(|word| word != "--aws-extra-signers")
        .nth(1);
    let signers = signers.unwrap().into_string().unwrap();

    let known = explained(&cloud, &["--aws-extra-signers", &signers]);
    let unknown = explained(&cloud, &[]);

    let expected = [
        ("scope", "passed"),
        ("encoding", "passed"),
        ("request-format", "passed"),
        ("machine", "passed"),
        ("evidence", "skipped"),
        ("node-name", "passed"),
        ("claim", "undecided"),
    ];
    assert_eq!(outcomes(&known), expected, "{known:#}");
    let saw = "not called: STS, and then EC2; the other parts of this check pass";
    assert_eq!(known["checks"][4]["saw"], saw);
    assert_eq!(outcomes(&unknown).last(), Some(&("evidence", "denied")));
    assert_eq!(unknown["reason"], "DocumentSignerMismatch");
}
