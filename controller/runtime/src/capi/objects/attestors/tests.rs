use serde_json::{Value, json};

use super::*;
use crate::capi::objects::Cluster;
use crate::capi::testing::{Contract, kept};

/// The attestors that a Cluster authorizes, if it has this annotation and the topology variable has these values.
fn own_attestors(annotation: Option<&str>, values: &[Value]) -> OwnAttestors {
    let mut cluster = Contract::V1Beta2.cluster();
    if let Some(text) = annotation {
        cluster["metadata"]["annotations"] = json!({ANNOTATION: text});
    }
    let ours = values
        .iter()
        .map(|value| json!({"name": "kubeletAuthentication", "value": value}));
    let others = [
        json!({"name": "other", "value": {"enabled": true, "authorizedAttestors": ["tpm"]}}),
        json!({"name": "valueless"}),
    ];
    let variables: Vec<_> = others.into_iter().chain(ours).collect();
    cluster["spec"]["topology"] = json!({"class": "a", "variables": variables});
    kept::<Cluster>(cluster).unwrap().attestors
}

fn setting(attestors: &[&str]) -> Value {
    json!({"enabled": true, "authorizedAttestors": attestors})
}

#[test]
fn a_cluster_sets_its_attestors_with_an_annotation_or_a_variable() {
    let named = |names: &[&str]| {
        let names = names.iter().copied().map(String::from);
        OwnAttestors::Named(names.collect())
    };
    for (annotation, values, expected) in [
        (None, vec![], OwnAttestors::Unset),
        (Some("aws"), vec![], named(&["aws"])),
        (Some(" aws, tpm "), vec![], named(&["aws", "tpm"])),
        // The API server rejects an invalid name.
        (Some(""), vec![], named(&[""])),
        (None, vec![setting(&["aws"])], named(&["aws"])),
        (None, vec![json!({"enabled": true})], named(&[])),
        (None, vec![json!({})], OwnAttestors::Unset),
        (None, vec![Value::Null], OwnAttestors::Unset),
        (
            None,
            vec![json!({"enabled": false, "authorizedAttestors": ["aws"]})],
            OwnAttestors::Unset,
        ),
        // A variable that is not enabled does not conflict with an annotation.
        (
            Some("aws"),
            vec![json!({"enabled": false, "authorizedAttestors": ["tpm"]})],
            named(&["aws"]),
        ),
        (
            Some("aws,tpm"),
            vec![setting(&["tpm", "aws"])],
            named(&["aws", "tpm"]),
        ),
    ] {
        let read = own_attestors(annotation, &values);
        assert_eq!(read, expected, "{annotation:?} {values:?}");
    }
}

#[test]
fn invalid_attestor_settings_are_reported_without_rejecting_the_cluster() {
    let long = "a".repeat(1025);
    let many = ",".repeat(32);
    for (annotation, values, expected) in [
        (
            Some("aws"),
            vec![setting(&["tpm"])],
            InvalidOwnAttestors::Contradictory,
        ),
        (
            Some("aws"),
            vec![setting(&["aws", "tpm"])],
            InvalidOwnAttestors::Contradictory,
        ),
        (
            None,
            vec![setting(&["aws"]), setting(&["tpm"])],
            InvalidOwnAttestors::Contradictory,
        ),
        (None, vec![json!("aws")], InvalidOwnAttestors::Malformed),
        (
            None,
            vec![json!({"enabled": "true"})],
            InvalidOwnAttestors::Malformed,
        ),
        (
            Some("aws"),
            vec![json!({"enabled": true, "authorizedAttestors": "aws"})],
            InvalidOwnAttestors::Malformed,
        ),
        (Some(&long), vec![], InvalidOwnAttestors::TooLong),
        (None, vec![setting(&[&long])], InvalidOwnAttestors::TooLong),
        (Some(&many), vec![], InvalidOwnAttestors::TooLong),
        (None, vec![setting(&[""; 33])], InvalidOwnAttestors::TooLong),
    ] {
        let read = own_attestors(annotation, &values);
        assert_eq!(read, OwnAttestors::Invalid(expected), "{values:?}");
    }
}

#[test]
fn a_cluster_with_32_attestors_is_read() {
    let names = OwnAttestors::Named(vec![String::new(); 32]);
    assert_eq!(own_attestors(Some(&",".repeat(31)), &[]), names);
    assert_eq!(own_attestors(None, &[setting(&[""; 32])]), names);
}
