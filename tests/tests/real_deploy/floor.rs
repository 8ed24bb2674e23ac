//! Tests of the floor as a part of the chart, and as a kustomize component.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_tests::deploy::{NAMESPACE, kustomize};
use kubelet_authenticator_tests::page::repository;
use serde_json::{Value, json};

use crate::chart::{objects, template};

fn folder() -> PathBuf {
    repository().join("packaging/floor")
}

/// The policies and bindings in the file.
fn packaged() -> BTreeMap<[String; 3], Value> {
    let text = fs::read_to_string(folder().join("policies.yaml")).unwrap();
    let all = objects(&text);
    assert_eq!(all.len(), 6, "{:?}", all.keys());
    all
}

/// The policies and bindings among the objects.
fn policies(mut all: BTreeMap<[String; 3], Value>) -> BTreeMap<[String; 3], Value> {
    all.retain(|[kind, ..], _| kind.starts_with("ValidatingAdmissionPolicy"));
    all
}

/// The CEL expression of a variable in this policy.
fn variable(all: &BTreeMap<[String; 3], Value>, policy: &str, name: &str) -> Value {
    let key = ["ValidatingAdmissionPolicy", "", policy].map(str::to_owned);
    let variables = all[&key]["spec"]["variables"].as_array().unwrap();
    let mut found = variables.iter().filter(|one| one["name"] == name);
    found.next().unwrap()["expression"].clone()
}

#[test]
fn the_chart_has_the_packaged_floor_if_it_is_enabled() {
    let of = |namespace: &str, values: &[&str]| policies(objects(&template(namespace, values)));

    assert_eq!(of(NAMESPACE, &[]), BTreeMap::new());
    assert_eq!(of(NAMESPACE, &["floor.enabled=true"]), packaged());
    let changed = of(
        "elsewhere",
        &[
            r#"floor={"enabled": true, "attestors": ["tpm"], "exempt": ["user:a'b", "group:c"]}"#,
            r#"floor.responders=["group:on-call"]"#,
        ],
    );
    assert!(changed.keys().eq(packaged().keys()));
    let settings = "node-attestation-floor-settings";
    assert_eq!(variable(&changed, settings, "attestors"), r#"["tpm"]"#);
    for policy in ["settings", "deletion", "identities"] {
        let policy = format!("node-attestation-floor-{policy}");
        for (name, expression) in [
            ("exempt", r#"["user:a'b","group:c"]"#),
            ("responders", r#"["group:on-call"]"#),
            (
                "controllers",
                r#"["user:system:serviceaccount:elsewhere:node-attestation-controller"]"#,
            ),
        ] {
            assert_eq!(variable(&changed, &policy, name), expression, "{policy}");
        }
    }
}

#[test]
fn an_overlay_with_the_component_has_the_packaged_floor() {
    let files = Scratch::new("overlay");
    let component = files.join("floor");
    fs::create_dir(&component).unwrap();
    for file in ["kustomization.yaml", "policies.yaml"] {
        fs::copy(folder().join(file), component.join(file)).unwrap();
    }
    let overlay = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "components": ["floor"],
    });
    fs::write(files.join("kustomization.yaml"), overlay.to_string()).unwrap();

    assert_eq!(objects(&kustomize(&[], files.path())), packaged());
}
