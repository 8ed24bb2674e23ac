use std::collections::BTreeSet;

use node_attestation_core::crd::manifests;
use regex_lite::Regex;
use serde_json::{Value, json};

use super::testing::{cases, changed, malformed, states_with_most_values, valid};
use super::*;

/// The faults in this object.
fn faults(object: &Value) -> Vec<Fault> {
    match parse(&object.to_string()) {
        Ok(_) => Vec::new(),
        Err(InvalidSettings::Faults(faults)) => faults,
        Err(error) => panic!("{error}"),
    }
}

fn each_part(schema: &Value, act: &mut dyn FnMut(&Value)) {
    act(schema);
    let properties = schema["properties"].as_object();
    let properties = properties.into_iter().flat_map(|all| all.values());
    let others = [schema.get("items"), schema.get("additionalProperties")];
    for part in properties.chain(others.into_iter().flatten()) {
        each_part(part, act);
    }
}

#[test]
fn a_valid_file_is_accepted_as_yaml_and_as_json() {
    assert_eq!(faults(&valid()), []);
    let yaml = serde_saphyr::to_string(&valid()).unwrap();
    let from_yaml = parse(&yaml).unwrap();
    assert_eq!(from_yaml, parse(&valid().to_string()).unwrap());
    assert_eq!(from_yaml.spec.authorized_attestors, ["aws", "tpm"]);
}

#[test]
fn a_violated_schema_rule_is_reported_with_field_and_message() {
    for case in cases() {
        let found = faults(&changed(&case));

        let [fault] = &found[..] else {
            panic!("{case:?}: {found:?}");
        };
        assert_eq!(fault.field, case.field, "{case:?}");
        assert!(fault.message.starts_with(case.message), "{case:?}: {fault}");
    }
}

/// Checks the spec of an object, which is JSON as in a response from an API server.
fn stored(object: &Value) -> Result<(), Contradiction> {
    check_stored(&serde_json::from_value(object["spec"].clone()).unwrap())
}

#[test]
fn a_stored_object_is_checked_with_the_same_schema_rules() {
    assert_eq!(stored(&valid()), Ok(()));
    let schema = schema::of_authentication();
    let rules: Vec<_> = rules::of(&schema["properties"]["spec"]).collect();
    for rule in &rules {
        let cases = cases();
        let case = cases.iter().find(|case| case.message == rule.message);
        let case = case.unwrap();

        let refused = stored(&changed(case)).unwrap_err();

        let expected = format!(
            "{}: {}. Until it is corrected, the controller does not answer requests from the Cluster",
            case.field, case.message
        );
        assert_eq!(refused.to_string(), expected);
    }
    assert_eq!(rules.len(), 9);
}

#[test]
fn compatible_settings_are_accepted() {
    let key = json!([{"machine": "m-1", "ekSha256": "1".repeat(64)}]);
    for spec in [
        json!({
            "authorizedAttestors": ["aws", "tpm"],
            "certificate": {"expirationSeconds": 2_592_000},
            "adoption": "Allow",
            "guestReportedAddresses": "Allow",
            "servingAddressRanges": ["10.0.0.0/8"],
            "aws": {"accounts": ["111122223333"], "requiredTags": {"team": "a"}},
            "tpm": {"endorsementKeys": {"configMaps": ["hosts"]}, "lateProviderIDs": "Allow"},
        }),
        json!({
            "authorizedAttestors": ["tpm"],
            "aws": {
                "accounts": ["111122223333"], "regions": ["eu-west-1"],
                "nodeName": "InstanceID", "requiredTags": {"team": "a"},
            },
            "tpm": {
                "endorsementKeys": {"platform": "aws", "allowList": key},
                "lateProviderIDs": "Allow",
            },
        }),
        json!({
            "authorizedAttestors": ["insecure"],
            "certificate": {"expirationSeconds": 31_622_400},
            "adoption": "AllowWithoutEvidence",
        }),
    ] {
        let mut object = valid();
        object["spec"] = spec;
        object["spec"]["clusterName"] = json!("prod-1");

        assert_eq!(faults(&object), []);
        assert_eq!(stored(&object), Ok(()));
    }
}

#[test]
fn a_policy_with_4096_register_values_is_accepted() {
    for count in [0, 8] {
        let mut object = valid();
        object["spec"]["tpm"]["pcrPolicy"]["allowed"] = states_with_most_values(count);

        assert_eq!(faults(&object), []);
    }
}

#[test]
fn every_schema_rule_has_a_failing_case() {
    let broken: BTreeSet<_> = cases().into_iter().map(|case| case.message).collect();
    each_part(&schema::of_authentication(), &mut |part| {
        for rule in rules::of(part) {
            assert!(
                broken.contains(rule.message),
                "no case breaks {:?} ({})",
                rule.expression,
                rule.message
            );
        }
    });
}

#[test]
fn a_malformed_value_is_refused_with_its_field() {
    for case in malformed() {
        let found = faults(&changed(&case));

        assert!(!found.is_empty(), "{case:?}");
        for fault in found {
            assert_eq!(fault.field, case.field, "{case:?}: {fault}");
        }
    }
}

#[test]
fn every_keyword_of_the_schema_is_checked() {
    each_part(&schema::of_authentication(), &mut |part| {
        for keyword in part.as_object().unwrap().keys() {
            assert!(schema::KEYWORDS.contains(&keyword.as_str()), "{keyword}");
        }
        let kind = part["type"].as_str();
        let known = ["string", "integer", "boolean", "array", "object"];
        assert!(kind.is_none_or(|kind| known.contains(&kind)), "{kind:?}");
        if let Some(pattern) = part["pattern"].as_str() {
            Regex::new(pattern).unwrap();
        }
        let list = part["x-kubernetes-list-type"].as_str();
        assert!(
            list.is_none_or(|kind| ["set", "map"].contains(&kind)),
            "{list:?}"
        );
        let format = part["format"].as_str();
        assert!(format.is_none_or(|format| format == "int32"), "{format:?}");
    });
}

#[test]
fn the_first_manifest_is_the_kubelet_authentication() {
    assert_eq!(manifests()[0].spec.names.kind, KIND);
}

#[test]
fn a_missing_field_has_the_default_of_its_type() {
    let mut object = valid();
    object["spec"] = json!({"clusterName": "prod-1", "authorizedAttestors": ["aws", "tpm"]});
    let expected = KubeletAuthenticationSpec::new("prod-1", &["aws", "tpm"]);
    assert_eq!(parse(&object.to_string()).unwrap().spec, expected);

    object["spec"]["aws"] = json!({});
    object["spec"]["tpm"] = json!({"endorsementKeys": null});
    object["spec"]["adoption"] = Value::Null;
    let spec = parse(&object.to_string()).unwrap().spec;
    assert_eq!(spec.aws, Some(crd::AwsSettings::default()));
    assert_eq!(spec.tpm, Some(crd::TpmSettings::default()));
}

#[test]
fn an_object_as_kubectl_prints_it_is_accepted_and_its_status_ignored() {
    let mut object = valid();
    object["metadata"]["uid"] = json!("0b5f3b1e");
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["managedFields"] = json!([]);
    object["status"] = json!({"conditions": "none"});

    let parsed = parse(&object.to_string()).unwrap();

    assert_eq!(parsed.status, None);
}

#[test]
fn an_annotation_that_is_a_number_is_refused_with_its_path() {
    for (field, value, expected) in [
        ("annotations", json!("12"), None),
        (
            "annotations",
            json!(12),
            Some("metadata.annotations.a/b: must be of type string: put it in quotes"),
        ),
        (
            "labels",
            json!(true),
            Some("metadata.labels.a/b: must be of type string: put it in quotes"),
        ),
    ] {
        let mut object = valid();
        object["metadata"][field] = json!({"a/b": value});

        let found = parse(&object.to_string()).err();

        let expected = expected.map(str::to_owned);
        assert_eq!(found.map(|error| error.to_string()), expected);
    }
}

#[test]
fn a_misspelled_field_is_refused_with_its_path() {
    for (pointer, field) in [
        ("/specs", "specs"),
        ("/metadata/label", "metadata.label"),
        ("/spec/autoApproveBinding", "spec.autoApproveBinding"),
        ("/spec/tpm/pcrPolcy", "spec.tpm.pcrPolcy"),
        (
            "/spec/tpm/endorsementKeys/allowList/0/machines",
            "spec.tpm.endorsementKeys.allowList[0].machines",
        ),
    ] {
        let mut object = valid();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = json!("x");

        let found = faults(&object);

        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].field, field);
        assert!(
            found[0]
                .message
                .starts_with("is not a field; the fields are ")
        );
    }
}

#[test]
fn a_removed_field_is_refused_with_its_replacement() {
    let cases = [
        (
            "/spec/certificate",
            json!({"insecureExpirationSeconds": 31_536_000}),
            "spec.certificate.insecureExpirationSeconds",
            "set spec.certificate.expirationSeconds",
        ),
        (
            "/spec/builtInRenewal",
            json!("ControlPlane"),
            "spec.builtInRenewal",
            "if the value is ControlPlane, set exemptNodes: [ControlPlane]",
        ),
        (
            "/spec/reenrolment",
            json!("WhenNodeDown"),
            "spec.reenrolment",
            "remove the field: a machine that lost its certificate",
        ),
        (
            "/spec/nameReuse",
            json!("Allow"),
            "spec.nameReuse",
            "remove the field; to find out when another machine can get a node name",
        ),
        (
            "/spec/staleNodes",
            json!("Delete"),
            "spec.staleNodes",
            "remove the field: the controller always deletes the Node",
        ),
        (
            "/spec/tpm/pcrPolicy/mode",
            json!("Record"),
            "spec.tpm.pcrPolicy.mode",
            "remove the field: the controller enforces the states in allowed",
        ),
        (
            "/spec/tpm/pcrPolicy/bank",
            json!("sha256"),
            "spec.tpm.pcrPolicy.bank",
            "remove the field: only the SHA-256 bank is supported",
        ),
    ];
    assert_eq!(cases.len(), removed::REMOVED.len());
    for (pointer, value, field, replacement) in cases {
        let mut object = valid();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value;

        let found = faults(&object);

        let [fault] = &found[..] else {
            panic!("{field}: {found:?}");
        };
        assert_eq!(fault.field, field);
        let expected = format!("was removed: {replacement}");
        assert!(fault.message.starts_with(&expected), "{fault}");
    }
}

#[test]
fn another_kind_or_version_is_refused() {
    for (field, value) in [
        ("kind", "NodeIdentity"),
        ("apiVersion", "attestation.cluster.x-k8s.io/v1"),
    ] {
        let mut object = valid();
        object[field] = json!(value);

        let found = faults(&object);

        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].field, field);
    }
    assert!(matches!(parse("{"), Err(InvalidSettings::Syntax(_))));
    assert_eq!(faults(&json!([])).len(), 2);
    let two = format!("{}\n---\n{}", valid(), valid());
    assert!(matches!(parse(&two), Err(InvalidSettings::Syntax(_))));
}

#[test]
fn a_management_cluster_field_in_a_settings_file_is_refused() {
    for (pointer, value, field) in [
        (
            "/spec/aws/serviceAccountIdentity",
            json!("nodes"),
            "spec.aws.serviceAccountIdentity",
        ),
        (
            "/spec/tpm/endorsementKeys/configMaps",
            json!(["rack-1"]),
            "spec.tpm.endorsementKeys.configMaps",
        ),
        (
            "/spec/tpm/lateProviderIDs",
            json!("Allow"),
            "spec.tpm.lateProviderIDs",
        ),
    ] {
        let mut object = valid();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();

        // An API server would accept the object.
        assert_eq!(faults(&object), []);
        let error = read(file.path()).unwrap_err();

        let SettingsFileError::Invalid {
            source: InvalidSettings::Faults(found),
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].field, field);
    }
}

#[test]
fn settings_that_a_file_does_not_contain_have_no_effect() {
    use AutoApproveBindings::{Remove, Report};
    let read_with = |fields: &[(&str, Value)]| {
        let mut object = valid();
        for (field, value) in fields {
            object["spec"][*field] = value.clone();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        let spec = read(file.path()).unwrap().spec;
        let exempts = spec.exempt().has_control_plane();
        (spec.mode(), spec.adopts(), exempts)
    };
    assert_eq!(read_with(&[]), (Report, Adoption::Refuse, false));
    for (field, value, expected) in [
        (
            "autoApproveBindings",
            json!("Remove"),
            (Remove, Adoption::Refuse, false),
        ),
        ("adoption", json!("Allow"), (Report, Adoption::Allow, false)),
        (
            "exemptNodes",
            json!(["ControlPlane"]),
            (Report, Adoption::Refuse, true),
        ),
    ] {
        assert_eq!(read_with(&[(field, value)]), expected, "{field}");
    }
}

#[test]
fn the_example_of_each_attestor_is_valid_and_has_the_defaults() {
    for attestor in ["aws", "tpm", "insecure"] {
        let parsed = parse(&example("prod-1", attestor).unwrap()).unwrap();

        let spec = parsed.spec;
        assert_eq!(spec.authorized_attestors, [attestor]);
        assert_eq!(spec.cluster_name, "prod-1");
        assert_eq!(spec.mode(), AutoApproveBindings::Report, "{attestor}");
        assert_eq!(spec.adopts(), Adoption::Refuse, "{attestor}");
        assert!(!spec.exempt().has_control_plane(), "{attestor}");
    }
    for (name, attestor, field) in [
        ("Prod 1", "aws", "spec.clusterName"),
        ("prod-1", "null", "spec.authorizedAttestors"),
    ] {
        let Err(InvalidSettings::Faults(faults)) = example(name, attestor) else {
            panic!("{name} {attestor}");
        };
        assert!(
            faults.iter().any(|fault| fault.field == field),
            "{faults:?}"
        );
    }
}

#[test]
fn a_file_beyond_the_limit_is_refused_instead_of_truncated() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let limit = usize::try_from(MAX_FILE_LEN).unwrap();
    let mut text = valid().to_string();
    text.extend(std::iter::repeat_n('\n', limit - text.len()));
    std::fs::write(file.path(), &text).unwrap();
    assert!(read(file.path()).is_ok());

    text.push('\n');
    std::fs::write(file.path(), &text).unwrap();
    let error = read(file.path()).unwrap_err();

    assert!(matches!(error, SettingsFileError::Read { .. }), "{error}");
}
