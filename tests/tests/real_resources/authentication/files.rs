//! Tests of a KubeletAuthentication in a file for `run --settings`: the parser and the API server return the same
//! result.

use std::process::Command;

use kubelet_authenticator_tests::program;
use node_attestation_runtime::settings_file::testing::{Case, cases, changed, malformed, valid};
use node_attestation_runtime::settings_file::{InvalidSettings, parse};
use serde_json::{Value, json};

use super::super::{assert_refused, dry_run};

/// Asserts that the parser returns the same result for a file that contains this object, and rejects exactly these
/// fields.
#[track_caller]
pub fn a_file_refuses(object: &Value, fields: &[&str]) {
    let faults = match parse(&object.to_string()) {
        Ok(_) => Vec::new(),
        Err(InvalidSettings::Faults(faults)) => faults,
        Err(error) => panic!("{error}"),
    };
    let mut found: Vec<_> = faults.iter().map(|fault| fault.field.as_str()).collect();
    found.dedup();
    assert_eq!(found, fields, "{faults:?}");
}

#[test]
fn the_api_server_and_a_file_refuse_the_same_field_of_each_case() {
    let (accepted, text) = dry_run("create", &valid());
    assert!(accepted, "{text}");
    a_file_refuses(&valid(), &[]);
    for case in cases().into_iter().chain(malformed()) {
        let Case { field, message, .. } = case;
        let object = changed(&case);

        let (accepted, text) = dry_run("create", &object);

        assert_refused(accepted, &text, field, message);
        a_file_refuses(&object, &[field]);
    }
}

#[test]
fn a_file_has_the_defaults_of_the_api_server() {
    let spec = json!({"clusterName": "prod-1", "authorizedAttestors": ["aws", "tpm"]});
    for (field, value) in [
        ("adoption", Value::Null),
        ("aws", json!({})),
        ("tpm", json!({})),
    ] {
        let mut object = valid();
        object["spec"] = spec.clone();
        object["spec"][field] = value;

        let (accepted, text) = dry_run("create", &object);

        assert!(accepted, "{text}");
        let stored: Value = serde_json::from_str(&text).unwrap();
        let of_file = parse(&object.to_string()).unwrap();
        assert_eq!(serde_json::to_value(of_file.spec).unwrap(), stored["spec"]);
    }
}

#[test]
fn the_api_server_accepts_rendered_settings() {
    for attestor in ["aws", "tpm", "insecure"] {
        let rendered = Command::new(program("node-attestation-controller"))
            .args([
                "render",
                "settings",
                "--cluster-name",
                "prod-1",
                "--attestor",
                attestor,
            ])
            .output()
            .unwrap();
        assert!(rendered.status.success(), "{rendered:?}");
        let text = String::from_utf8(rendered.stdout).unwrap();
        let mut object: Value = serde_saphyr::from_str(&text).unwrap();
        object["metadata"]["namespace"] = json!("default");

        let (accepted, text) = dry_run("create", &object);

        assert!(accepted, "{text}");
    }
}
