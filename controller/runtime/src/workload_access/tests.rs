use std::collections::BTreeSet;

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::*;
use crate::capi::token_of;
use crate::preflight::record_rights;

/// A certificate that is not parsed in these tests.
const CA: &[u8] = b"a certificate";

fn documents(text: &str) -> Vec<Value> {
    let all = text.split("---\n").filter(|text| !text.trim().is_empty());
    all.map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let found = documents.iter().filter(|one| one["kind"] == kind);
    found.collect()
}

/// The rules of each role, as text.
fn rules(documents: &[Value]) -> BTreeSet<String> {
    let roles = documents
        .iter()
        .filter(|one| ["Role", "ClusterRole"].contains(&one["kind"].as_str().unwrap()));
    roles.map(Value::to_string).collect()
}

#[test]
fn the_service_account_has_the_packaged_rights_and_its_own_token() {
    let packaged = documents(RIGHTS);
    let rendered = documents(&rights(true));

    let own = &rules(&rendered) - &rules(&packaged);
    assert_eq!(&rules(&packaged) - &rules(&rendered), BTreeSet::new());
    let own: Vec<Value> = own
        .iter()
        .map(|role| serde_json::from_str(role).unwrap())
        .collect();
    let [own] = own.as_slice() else {
        panic!("{own:?}");
    };
    let only = json!([{
        "apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"],
        "resourceNames": ["node-attestation-controller"],
    }]);
    assert_eq!(own["rules"], only);
    assert_eq!(own["metadata"]["namespace"], "node-attestation-system");
    let account = json!([{
        "kind": "ServiceAccount", "name": "node-attestation-controller",
        "namespace": "node-attestation-system",
    }]);
    let bindings = rendered.iter().filter(|one| one.get("subjects").is_some());
    let bindings: Vec<_> = bindings.collect();
    assert_eq!(bindings.len(), packaged.len() / 2 + 1);
    for binding in bindings {
        assert_eq!(binding["subjects"], account, "{binding}");
    }
    assert_eq!(of_kind(&rendered, "ServiceAccount").len(), 1);
}

#[test]
fn rights_without_bootstrap_tokens_do_not_include_secrets() {
    let reads_secrets = |rules: &BTreeSet<String>| {
        let found = rules.iter().filter(|role| role.contains("\"secrets\""));
        found.count()
    };
    assert_eq!(reads_secrets(&rules(&documents(&rights(true)))), 1);

    let without = documents(&rights(false));

    assert_eq!(reads_secrets(&rules(&without)), 0);
    assert_eq!(documents(&rights(true)).len(), without.len() + 2);
}

#[test]
fn roles_for_secrets_name_each_secret_of_a_cluster() {
    let clusters = [ObjectKey::new("a-b", "c"), ObjectKey::new("a", "b-c")];
    let text = roles(&clusters, "system", "user:system:serviceaccount:system:me").unwrap();

    let documents = documents(&text);
    let found: Vec<_> = of_kind(&documents, "Role")
        .into_iter()
        .map(|role| {
            let rule = &role["rules"][0];
            assert_eq!(role["rules"].as_array().unwrap().len(), 1);
            assert_eq!(rule["resources"], json!(["secrets"]));
            json!([
                role["metadata"]["namespace"],
                rule["resourceNames"],
                rule["verbs"]
            ])
        })
        .collect();
    let expected = [
        json!(["a-b", ["c-ca"], ["list", "watch"]]),
        json!([
            "system",
            ["workload-access.a-b.c"],
            ["list", "watch", "patch"]
        ]),
        json!(["a", ["b-c-ca"], ["list", "watch"]]),
        json!([
            "system",
            ["workload-access.a.b-c"],
            ["list", "watch", "patch"]
        ]),
    ];
    assert_eq!(found, expected);
    let bindings = of_kind(&documents, "RoleBinding");
    assert_eq!(bindings.len(), expected.len());
    for binding in bindings {
        let subject = json!([{"kind": "ServiceAccount", "name": "me", "namespace": "system"}]);
        assert_eq!(binding["subjects"], subject);
        assert_eq!(binding["roleRef"]["name"], binding["metadata"]["name"]);
    }
    let of = |text: &str| serde_json::to_value(subject(text)).unwrap();
    for (text, kind, name) in [
        ("user:a", "User", "a"),
        (
            "group:system:serviceaccount:a:b",
            "Group",
            "system:serviceaccount:a:b",
        ),
        ("a", "User", "a"),
    ] {
        let expected = json!({"apiGroup": RBAC, "kind": kind, "name": name});
        assert_eq!(of(text), expected, "{text}");
    }
}

#[test]
fn the_rendered_role_has_exactly_the_permissions_for_records() {
    let documents = documents(&identities("user:jane").unwrap());

    let kinds = documents.iter().map(|one| one["kind"].as_str().unwrap());
    let expected = ["CustomResourceDefinition", "Role", "RoleBinding"];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    let name = &documents[0]["metadata"]["name"];
    assert_eq!(name, "nodeidentities.attestation.cluster.x-k8s.io");
    let role: Role = serde_json::from_value(documents[1].clone()).unwrap();
    let namespace = role.metadata.namespace.unwrap();
    let granted: BTreeSet<_> = role
        .rules
        .unwrap()
        .into_iter()
        .flat_map(|rule| {
            let (groups, resources) = (rule.api_groups.unwrap(), rule.resources.unwrap());
            let (resource, part) = match resources[0].split_once('/') {
                Some((resource, part)) => (resource, format!("/{part}")),
                None => (&*resources[0], String::new()),
            };
            let right = format!("{resource}.{}{part} in namespace {namespace}", groups[0]);
            let rights = rule.verbs.iter().map(|verb| format!("{verb} {right}"));
            rights.collect::<Vec<_>>()
        })
        .collect();
    let needed = record_rights(WORKLOAD_NAMESPACE);
    let needed: BTreeSet<_> = needed.iter().map(ToString::to_string).collect();
    assert_eq!(granted, needed);
    let subject = json!([{"apiGroup": RBAC, "kind": "User", "name": "jane"}]);
    assert_eq!(documents[2]["subjects"], subject);
    let name = "node-attestation-controller-identities:user:jane";
    assert_eq!(documents[2]["roleRef"]["name"], name);
}

/// Renders the Secret with this token.
fn rendered(token: &str) -> Result<String, InvalidAccess> {
    let cluster = ObjectKey::new("tenant-a", "prod-1");
    let ca = [CA.to_vec()];
    let server = ("https://203.0.113.7:6443/", ca.as_slice());
    secret(&cluster, "system", server, token, EgressPolicy::STRICT)
}

#[test]
fn the_rendered_secret_has_a_kubeconfig_that_the_controller_accepts() {
    let sub = "system:serviceaccount:node-attestation-system:node-attestation-controller";
    let token = token_of(&json!({"sub": sub, "iat": 1, "exp": 1_000_000}));

    let text = rendered(&token).unwrap();

    let [secret] = &documents(&text)[..] else {
        panic!("{text}");
    };
    let metadata = json!({"name": "workload-access.tenant-a.prod-1", "namespace": "system"});
    assert_eq!(secret["metadata"], metadata);
    let value = secret["data"]["value"].as_str().unwrap();
    let kubeconfig = BASE64.decode(value.as_bytes()).unwrap();
    let kubeconfig = TenantKubeconfig::parse(&kubeconfig, EgressPolicy::STRICT).unwrap();
    assert!(kubeconfig.claims().is_some());
    assert_eq!(kubeconfig.ca_certificates(), [CA.to_vec()]);
}

#[test]
fn a_secret_without_an_expiring_service_account_token_is_not_rendered() {
    let sub = "system:serviceaccount:node-attestation-system:node-attestation-controller";
    let unlimited = token_of(&json!({"sub": sub, "iat": 1}));
    for token in ["", "opaque", "two lines\n", &unlimited] {
        let error = rendered(token).unwrap_err().to_string();
        assert_eq!(
            error,
            "the token is not a service account token with an expiry time"
        );
    }
}
