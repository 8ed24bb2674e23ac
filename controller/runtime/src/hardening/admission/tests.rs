//! Tests that evaluate the policy as CEL.

use std::collections::BTreeMap;

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ManagedFieldsEntry, ObjectMeta, OwnerReference, Time,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::super::evaluated;
use super::*;

/// The expressions in the policy. All of them must be true for an allowed request.
fn expressions() -> Vec<String> {
    let policy = policy(&settings()).policy();
    let validations = policy.spec.unwrap().validations.unwrap();
    validations.into_iter().map(|one| one.expression).collect()
}

/// The names of the fields in this value. All fields are set.
fn fields(value: impl serde::Serialize) -> Map<String, Value> {
    let Value::Object(fields) = serde_json::to_value(value).unwrap() else {
        panic!("no object")
    };
    fields
}

fn filled_metadata() -> ObjectMeta {
    let text = || Some("x".to_owned());
    let map = || Some(BTreeMap::from([("x".to_owned(), "x".to_owned())]));
    let time = || Some(Time(Timestamp::UNIX_EPOCH));
    // The value lists all fields, without a default, so that a field in a later version also gets a limit.
    ObjectMeta {
        annotations: map(),
        creation_timestamp: time(),
        deletion_grace_period_seconds: Some(1),
        deletion_timestamp: time(),
        finalizers: Some(vec!["x".to_owned()]),
        generate_name: text(),
        generation: Some(1),
        labels: map(),
        managed_fields: Some(vec![ManagedFieldsEntry::default()]),
        name: text(),
        namespace: text(),
        owner_references: Some(vec![OwnerReference::default()]),
        resource_version: text(),
        self_link: text(),
        uid: text(),
    }
}

#[test]
fn each_field_of_a_request_that_its_requester_writes_is_bounded() {
    // The API server sets these fields, or rejects requests that contain them.
    let set_by_server = [
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "namespace",
        "resourceVersion",
        "uid",
    ];
    let expressions = expressions().join(" ");
    let of_metadata = fields(filled_metadata());
    assert_eq!(of_metadata.len(), 15);
    for field in of_metadata.keys() {
        let is_bounded = expressions.contains(&format!("size(object.metadata.{field})"))
            || expressions.contains(&format!("size(object.metadata.{field}[key])"));
        let is_set = set_by_server.contains(&field.as_str());
        assert!(is_bounded != is_set, "metadata.{field}");
    }
    // The other fields of the spec identify the requester, or have validated values: a number, or known usages.
    let spec = CertificateSigningRequestSpec::default();
    let CertificateSigningRequestSpec {
        expiration_seconds: _,
        extra: _,
        groups: _,
        request: _,
        signer_name: _,
        uid: _,
        usages: _,
        username: _,
    } = spec;
    assert!(expressions.contains("variables.requestLength <= 65536"));
    assert!(expressions.contains("variables.ourSigner"));
}

#[test]
fn an_update_of_a_request_has_the_same_limits_as_its_creation() {
    let policy = policy(&settings()).policy().spec.unwrap();
    let rules = policy.match_constraints.unwrap().resource_rules.unwrap();

    let operations: Vec<_> = rules.iter().flat_map(|rule| &rule.operations).collect();

    assert_eq!(operations, [&["CREATE", "UPDATE"]]);
}

fn settings() -> AdmissionSettings {
    AdmissionSettings {
        attestors: BTreeSet::from([Provider::AWS]),
        exempt: BTreeSet::new(),
        enforced: true,
    }
}

/// The messages of the validations that reject this object from this user.
fn refused(user: &Value, object: &Value) -> Vec<String> {
    let given = json!({"request": {"userInfo": user}, "object": object});
    evaluated::refused(policy(&settings()).policy(), &given)
}

fn token() -> Value {
    json!({"username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers", "system:authenticated"]})
}

fn node() -> Value {
    json!({"username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"]})
}

/// The managed fields, as the API server writes them.
fn managed(fields: &Value) -> Value {
    json!([{
        "manager": "kubelet", "operation": "Update", "apiVersion": "certificates.k8s.io/v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
    }])
}

/// A request, as the policy receives it from the API server.
fn request(signer: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {
            "name": "kubelet-authenticator-1", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": managed(&json!({"f:spec": {
                "f:request": {}, "f:signerName": {}, "f:usages": {}, "f:expirationSeconds": {},
            }})),
        },
        "spec": {
            "request": "eA==", "signerName": signer, "usages": ["client auth"], "username": "system:node:n1",
            "groups": ["system:nodes"], "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=0"]},
        },
        "status": {},
    })
}

/// Includes requests from kubelets, with a generated name, and requests from the plugin, some of which have the
/// annotation of the proposal.
#[test]
fn requests_from_kubelets_and_the_plugin_are_within_the_limits() {
    let ours = Provider::AWS.client_signer();
    assert_eq!(refused(&token(), &request(&ours)), Vec::<String>::new());
    assert_eq!(refused(&node(), &request(&ours)), Vec::<String>::new());
    let mut annotated = request(&ours);
    annotated["metadata"]["annotations"] = json!({ENDORSEMENT_KEY_ANNOTATION: "0".repeat(64)});
    annotated["metadata"]["managedFields"] = managed(&json!({
        "f:metadata": {"f:annotations": {".": {}, format!("f:{ENDORSEMENT_KEY_ANNOTATION}"): {}}},
        "f:spec": {"f:request": {}, "f:signerName": {}, "f:usages": {}},
    }));
    assert_eq!(refused(&token(), &annotated), Vec::<String>::new());
    let mut serving = request(BUILT_IN_SERVING_SIGNER);
    serving["metadata"]["name"] = json!("csr-x7k2p");
    serving["metadata"]["generateName"] = json!("csr-");
    serving["metadata"]["managedFields"] = managed(&json!({
        "f:metadata": {"f:generateName": {}},
        "f:spec": {"f:request": {}, "f:signerName": {}, "f:usages": {}, "f:expirationSeconds": {}},
    }));
    assert_eq!(refused(&node(), &serving), Vec::<String>::new());
    for empty in ["labels", "annotations"] {
        serving["metadata"][empty] = json!({});
    }
    assert_eq!(refused(&node(), &serving), Vec::<String>::new());
}

#[test]
fn metadata_that_makes_a_request_large_is_refused() {
    let (name, bare) = (
        "the name of the request is too long",
        "must not have labels",
    );
    let (annotation, fields) = ("can have only the annotation", "too many managed fields");
    let many = |prefix: &str| -> Map<String, Value> {
        let keys = (0..9).map(|number| (format!("{prefix}{number}"), json!({})));
        keys.collect()
    };
    let two = managed(&json!({}));
    let three = [&two[0], &two[0], &two[0]];
    let long = "x".repeat(254);
    let cases = [
        ("labels", json!({"a": "b"}), bare),
        ("finalizers", json!(["example.com/a"]), bare),
        ("ownerReferences", json!([{"name": "a"}]), bare),
        ("selfLink", json!("/x"), bare),
        ("annotations", json!({"a": "b"}), annotation),
        (
            "annotations",
            json!({ENDORSEMENT_KEY_ANNOTATION: "0".repeat(129)}),
            annotation,
        ),
        (
            "annotations",
            json!({ENDORSEMENT_KEY_ANNOTATION: "0", "a": ""}),
            annotation,
        ),
        ("name", json!(format!("kubelet-authenticator-{long}")), name),
        ("generateName", json!(long), name),
        ("managedFields", json!(three), fields),
        ("managedFields", managed(&Value::Object(many("f:"))), fields),
        (
            "managedFields",
            managed(&json!({"f:metadata": many("f:")})),
            fields,
        ),
        (
            "managedFields",
            managed(&json!({"f:metadata": {"f:labels": many("f:")}})),
            fields,
        ),
        (
            "managedFields",
            managed(&json!({"f:metadata": {"f:labels": {"f:a": {"f:b": {}}}}})),
            fields,
        ),
        (
            "managedFields",
            managed(&json!({"f:metadata": {"f:labels": {(&*long): {}}}})),
            fields,
        ),
    ];
    // The limits do not depend on the user.
    let users = [token(), node()];
    for ((field, value, words), user) in cases.iter().zip(users.iter().cycle()) {
        let mut large = request(&Provider::AWS.client_signer());
        large["metadata"][field] = value.clone();

        let refused = refused(user, &large);

        assert_eq!(refused.len(), 1, "{field}: {refused:?}");
        assert!(refused[0].contains(words), "{field}: {refused:?}");
    }
}
