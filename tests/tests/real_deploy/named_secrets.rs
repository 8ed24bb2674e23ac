//! Tests of a controller that is not allowed to read all Secrets.

use std::fs;

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::deploy::{NAME, NAMESPACE, kustomize};
use kubelet_authenticator_tests::page::repository;
use serde_json::{Value, json};

use crate::chart::{objects, readable_secrets, template};

#[test]
fn a_chart_without_all_secrets_reads_no_secret() {
    let of = |values: &[&str]| readable_secrets(&objects(&template(NAMESPACE, values)));
    let named = "allSecrets=false";

    assert_eq!(of(&[]), [""]);
    assert_eq!(of(&[named]), [""; 0]);
    assert_eq!(of(&[named, r#"watchNamespace="fleet""#]), [""; 0]);
    let with_static = of(&[named, "capa.staticIdentities=true"]);
    assert_eq!(with_static, ["capa-system"]);
}

#[test]
fn the_component_for_named_secrets_removes_only_the_rule_for_secrets() {
    let files = Scratch::new("overlay");
    let packaging = files.join("packaging");
    for folder in ["deploy", "rbac", "named-secrets"] {
        let copy = packaging.join(folder);
        fs::create_dir_all(&copy).unwrap();
        for file in fs::read_dir(repository().join("packaging").join(folder)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
    }
    let overlay = |components: Value| {
        let overlay = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": ["packaging/deploy"], "components": components,
        });
        fs::write(files.join("kustomization.yaml"), overlay.to_string()).unwrap();
        objects(&kustomize(&[], files.path()))
    };
    let mut expected = overlay(json!([]));
    assert_eq!(readable_secrets(&expected), [""]);

    let found = overlay(json!(["packaging/named-secrets"]));

    assert_eq!(readable_secrets(&found), [""; 0]);
    for ([kind, _, name], object) in &mut expected {
        if kind == "ClusterRole" && name == "node-attestation-controller-management" {
            let rules = object["rules"].as_array_mut().unwrap();
            rules.retain(|rule| rule["resources"] != json!(["secrets"]));
        }
        if kind == "Deployment" && name == NAME {
            let container = &mut object["spec"]["template"]["spec"]["containers"][0];
            let arguments = container["args"].as_array_mut().unwrap();
            arguments.push(json!("--workload-access=own"));
        }
    }
    assert_eq!(found, expected);
}
