//! Tests of `explain` without a cluster. The request and the machines are in files.

use std::process::{Command, Output};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER};
use kubelet_authenticator_tests::controller::{Application, Machine, settings};
use kubelet_authenticator_tests::program;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use crate::{Files, assert_refused, stderr};

/// The request from machine `n1`, as the API server stores it.
fn request() -> Value {
    let mut object = Application::insecure(Machine::new("n1", "token1")).to_json();
    object["metadata"]["name"] = "request-of-n1".into();
    object["spec"]["username"] = "system:bootstrap:token1".into();
    object["spec"]["groups"] = json!([
        "system:bootstrappers",
        "system:bootstrappers:kubeadm:default-node-token",
        "system:authenticated",
    ]);
    object
}

fn explain(files: &Files, request: &Value, arguments: &[&str]) -> Output {
    let file = files.scratch.write("request.yaml", request.to_string());
    Command::new(program("node-attestation-controller"))
        .env_clear()
        .env("NO_COLOR", "1")
        .args(["explain", "--file"])
        .arg(file)
        .arg("--settings")
        .arg(files.path("settings.yaml"))
        .arg("--inventory")
        .arg(files.path("machines.yaml"))
        .arg("--ca-cert")
        .arg(files.path("ca.crt"))
        .args(arguments)
        .output()
        .unwrap()
}

#[track_caller]
fn printed(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn explain_runs_the_checks_until_one_needs_a_connection() {
    let files = Files::new();

    let text = printed(explain(&files, &request(), &[]));
    // The lifetime depends on the expiry time of the CA, so it differs between runs.
    let (before, rest) = text.split_once("token1, for ").unwrap();
    let (_, after) = rest.split_once('\n').unwrap();
    let text = format!("{before}token1, for A WHILE\n{after}");

    let expected = "\
Request:   request-of-n1
Node:      n1
Requester: system:bootstrap:token1
Signer:    cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure
Signed by: the controller, with the key of --ca-key or with its external signer

passed     scope: a request from system:bootstrap:token1 to
           cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure
passed     encoding: a request signed with its own key, without evidence
passed     request-format: node n1 on machine test:///n1, with bootstrap token
           token1, for A WHILE
passed     machine: machine n1 can join; its Node is n1
passed     evidence: no evidence identifies test:///n1
passed     node-name: machine n1 is allowed to use node name n1
undecided  claim: not called: the node identities, which are in the workload
           cluster

Result:    undecided, NotCalled: the node identities, which are in the workload
           cluster
";
    assert_eq!(text, expected);
    for line in text.lines() {
        let is_one_word = line.split_whitespace().count() < 2;
        assert!(line.chars().count() <= 80 || is_one_word, "{line}");
    }
}

#[test]
fn a_denied_request_is_explained_with_the_cure_of_its_reason() {
    let files = Files::new();
    let valid = request();
    let mut denied = request();
    denied["spec"]["usages"] = json!(["digital signature", "client auth", "server auth"]);

    let table = printed(explain(&files, &denied, &[]));
    let denied = printed(explain(&files, &denied, &["-o", "json"]));
    let denied: Value = serde_json::from_str(&denied).unwrap();
    let undecided = printed(explain(&files, &valid, &["-o", "json"]));
    let undecided: Value = serde_json::from_str(&undecided).unwrap();

    let cure = "Identify the client from `spec.username` of the request.";
    assert_eq!(denied["reason"], "UsagesNotExact");
    assert_eq!(
        denied["cure"],
        format!("{cure} The plugin never sends such a request.")
    );
    assert!(table.contains(&format!("\nCure:      {cure}")), "{table}");
    assert_eq!(
        (&undecided["reason"], &undecided["cure"]),
        (&json!("NotCalled"), &Value::Null)
    );
}

#[test]
fn the_failing_check_is_the_last_explained_step() {
    let files = Files::new();
    let mut request = request();
    request["spec"]["usages"] = json!(["digital signature", "client auth", "server auth"]);

    let told = printed(explain(&files, &request, &["-o", "json"]));
    let told: Value = serde_json::from_str(&told).unwrap();
    let yaml = printed(explain(&files, &request, &["-o", "yaml"]));
    let mut yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    yaml["asOf"] = told["asOf"].clone();

    let checks = told["checks"].as_array().unwrap();
    let last = checks.last().unwrap();
    assert_eq!(
        (&last["name"], &last["outcome"]),
        (&json!("request-format"), &json!("denied"))
    );
    assert_eq!(told["reason"], "UsagesNotExact");
    assert_eq!(told["message"], last["saw"]);
    assert_eq!(told, yaml);
}

#[test]
fn explain_covers_all_requests_of_a_list_or_the_named_one() {
    let files = Files::new();
    let mut other = request();
    other["metadata"]["name"] = "request-of-n2".into();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [request(), other]});

    let all = printed(explain(&files, &list, &["-o", "json"]));
    let all: Value = serde_json::from_str(&all).unwrap();
    let one = printed(explain(&files, &list, &["request-of-n2", "-o", "json"]));
    let one: Value = serde_json::from_str(&one).unwrap();

    let names: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["request-of-n1", "request-of-n2"]);
    assert_eq!(one["name"], "request-of-n2");
    let none = explain(&files, &list, &["request-of-n3"]);
    assert_refused(&none, &["does not contain this CertificateSigningRequest"]);
}

#[test]
fn a_file_with_another_kind_of_object_is_refused() {
    let files = Files::new();
    for (text, words) in [
        (
            json!({"kind": "Pod"}),
            "it is not a CertificateSigningRequest",
        ),
        (json!([]), "request.yaml"),
        (
            json!({"kind": "CertificateSigningRequest", "spec": {"request": 1}}),
            "request.yaml",
        ),
    ] {
        assert_refused(&explain(&files, &text, &[]), &[words]);
    }
}

#[test]
fn control_characters_in_a_request_are_not_printed() {
    let files = Files::new();
    let mut request = request();
    request["spec"]["username"] = "system:node:n1\u{1b}[2J".into();
    request["status"]["conditions"] = json!([{
        "type": "Denied", "status": "True", "reason": "Mine\u{1b}[31m",
        "message": "one\u{1b}]0;title\u{7}two\u{8}\rthree",
    }]);

    for output in ["table", "json", "yaml"] {
        let text = printed(explain(&files, &request, &["-o", output]));
        let is_control = |letter: &char| letter.is_control() && *letter != '\n';
        assert_eq!(text.chars().find(is_control), None, "{output}: {text:?}");
    }

    let text = printed(explain(&files, &request, &[]));
    let condition = "Condition: Denied Mine [31m at -: one ]0;title two three\n";
    assert!(text.contains(condition), "{text}");
    assert!(text.contains("Requester: system:node:n1 [2J\n"), "{text}");
}

/// A request from node `n1` for a serving certificate for 203.0.113.7.
fn serving() -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, "system:node:n1");
    params.subject_alt_names = vec![SanType::IpAddress([203, 0, 113, 7].into())];
    let key = KeyPair::generate().unwrap();
    let text = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "serving-of-n1"},
        "spec": {
            "signerName": BUILT_IN_SERVING_SIGNER,
            "usages": SERVING_USAGES,
            "request": BASE64_STANDARD.encode(text.replace("\r\n", "\n")),
            "username": "system:node:n1",
            "uid": "000102030405060708090a0b0c0d0e0f.1",
            "groups": ["system:nodes", "system:authenticated"],
        },
    })
}

#[test]
fn an_address_outside_the_configured_ranges_is_explained_as_denied() {
    let files = Files::new();
    let explained = |ranges: &[&str]| {
        let spec = json!({"authorizedAttestors": ["insecure"], "servingAddressRanges": ranges});
        files.scratch.write("settings.yaml", settings(&spec));
        let text = printed(explain(&files, &serving(), &[]));
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let passed = "passed request-format: node n1, for 203.0.113.7";

    let without = explained(&[]);
    let inside = explained(&["203.0.113.0/24"]);
    let outside = explained(&["198.51.100.0/24"]);

    let unlimited = format!("{passed} undecided serving-names");
    assert!(without.contains(&unlimited), "{without}");
    let limited =
        format!("{passed}; addresses are limited to 203.0.113.0/24 undecided serving-names");
    assert!(inside.contains(&limited), "{inside}");
    let denied = "Result: denied, ServingAddressOutOfRange: 203.0.113.7 is outside \
                  servingAddressRanges";
    assert!(outside.contains(denied), "{outside}");
}

/// With default settings, `explain` would accept this request.
#[test]
fn a_request_that_only_the_settings_deny_is_explained_as_denied() {
    let files = Files::new();
    let mut request = serving();
    request["spec"]["signerName"] = BUILT_IN_CLIENT_SIGNER.into();
    let explained = |bindings: &str| {
        let spec = json!({"authorizedAttestors": ["insecure"], "autoApproveBindings": bindings});
        files.scratch.write("settings.yaml", settings(&spec));
        let text = printed(explain(&files, &request, &["-o", "json"]));
        serde_json::from_str::<Value>(&text).unwrap()
    };

    let reported = explained("Report");
    let removed = explained("Remove");

    assert_eq!(reported["outcome"], "ignored", "{reported:#}");
    assert_eq!(removed["outcome"], "denied", "{removed:#}");
    assert_eq!(removed["reason"], "UnattestedBuiltInRequest");
}

#[test]
fn endpoint_and_service_names_are_explained_as_reserved() {
    let files = Files::new();
    let explained = |field: &str, value: Value| {
        let text = std::fs::read_to_string(files.path("machines.yaml")).unwrap();
        let mut inventory: Value = serde_json::from_str(&text).unwrap();
        inventory[field] = value;
        let file = files.scratch.write("changed.yaml", inventory.to_string());
        let request = files.scratch.write("request.yaml", serving().to_string());
        let output = Command::new(program("node-attestation-controller"))
            .env_clear()
            .args(["explain", "-ojson", "--file"])
            .arg(request)
            .arg("--settings")
            .arg(files.path("settings.yaml"))
            .arg("--inventory")
            .arg(file)
            .arg("--ca-cert")
            .arg(files.path("ca.crt"))
            .output()
            .unwrap();
        serde_json::from_str::<Value>(&printed(output)).unwrap()
    };

    let hosts = explained("endpointHosts", json!(["203.0.113.7"]));
    let ranges = explained("serviceRanges", json!(["203.0.113.0/24"]));
    let others = explained("endpointHosts", json!(["203.0.113.8"]));

    for reserved in [hosts, ranges] {
        assert_eq!(reserved["reason"], "ServingNameReserved", "{reserved:#}");
    }
    assert_eq!(others["outcome"], "undecided", "{others:#}");
}
