use serde_json::{Value, json};

use super::*;

/// A normal request with these additional fields.
fn request(metadata: &Value, spec: &Value) -> CertificateSigningRequest {
    let mut object = json!({
        "metadata": {
            "name": "a", "uid": "0a", "resourceVersion": "1",
            "annotations": {ENDORSEMENT_KEY_ANNOTATION: "key"},
        },
        "spec": {"request": "", "signerName": "s", "groups": ["g"], "usages": ["client auth"]},
    });
    for (part, fields) in [("metadata", metadata), ("spec", spec)] {
        let fields = fields.as_object().unwrap().clone();
        object[part].as_object_mut().unwrap().extend(fields);
    }
    serde_json::from_value(object).unwrap()
}

#[test]
fn each_value_of_a_request_is_counted_with_its_struct() {
    let count = 1000;
    let honest = memory(&request(&json!({}), &json!({})));
    assert!(honest < 4096, "{honest}");
    let many = |value: &Value| Value::from(vec![value.clone(); count]);
    let map = |value: &Value| {
        let entries = (0..count).map(|number| (number.to_string(), value.clone()));
        Value::Object(entries.collect())
    };
    let none = json!({});
    for (metadata, spec, least) in [
        (json!({"ownerReferences": many(&json!({}))}), &none, 104),
        (json!({"finalizers": many(&json!(""))}), &none, 24),
        (json!({"labels": map(&json!(""))}), &none, 48),
        (json!({"annotations": map(&json!(""))}), &none, 48),
        (none.clone(), &json!({"groups": many(&json!(""))}), 24),
        (none.clone(), &json!({"usages": many(&json!(""))}), 24),
        (none.clone(), &json!({"extra": map(&json!([""]))}), 72),
    ] {
        let size = memory(&request(&metadata, spec));
        assert!(size > honest + count * least, "{size}");
    }
    let mut answered = request(&none, &none);
    answered.status = serde_json::from_value(json!({"conditions": many(&json!({}))})).unwrap();
    let size = size_of::<CertificateSigningRequestCondition>();
    assert!(memory(&answered) > honest + count * size);
}

#[test]
fn a_request_is_kept_without_unread_fields() {
    let extra = json!({"extra": {"authentication.kubernetes.io/credential-id": ["a"]}});
    let seen = request(&json!({"managedFields": [{}]}), &extra);
    assert!(has_no_other_metadata(&seen));

    let none = json!({});
    assert_eq!(lean(seen), request(&none, &none));

    for metadata in [
        json!({"labels": {"a": "b"}}),
        json!({"annotations": {"a.b/c": ""}}),
        json!({"finalizers": ["a.b/c"]}),
        json!({"ownerReferences": [{}]}),
    ] {
        assert!(!has_no_other_metadata(&request(&metadata, &none)));
    }
}
