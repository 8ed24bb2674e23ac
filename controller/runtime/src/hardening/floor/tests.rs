//! The policies, evaluated as CEL, and the manifest.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::super::evaluated;
use super::*;

const CONTROLLER: &str =
    "system:serviceaccount:node-attestation-system:node-attestation-controller";

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().copied().map(String::from).collect()
}

/// The floor of the packaged manifest.
fn packaged() -> Floor {
    Floor {
        attestors: owned(&["aws", "tpm"]),
        controllers: vec![format!("user:{CONTROLLER}")],
        responders: Vec::new(),
        exempt: Vec::new(),
    }
}

fn floor() -> Floor {
    Floor {
        responders: owned(&["group:responders"]),
        exempt: owned(&["user:clusterctl", "group:operators"]),
        ..packaged()
    }
}

fn user(name: &str, groups: &[&str]) -> Value {
    let groups = [&["system:authenticated"], groups].concat();
    json!({"username": name, "groups": groups})
}

fn tenant() -> Value {
    // A user cannot be a group, and a group cannot be a user.
    user("operators", &["clusterctl"])
}

/// Settings that reach the floor.
fn valid() -> Value {
    json!({
        "metadata": {"name": "prod-1"},
        "spec": {
            "clusterName": "prod-1", "authorizedAttestors": ["aws"], "autoApproveBindings": "Remove",
            "exemptNodes": [],
        },
    })
}

fn given(user: &Value, operation: &str, object: &Value, old: &Value) -> Value {
    json!({
        "request": {"userInfo": user, "operation": operation}, "object": object, "oldObject": old,
    })
}

/// The refusals of a creation, and of an update of valid settings.
fn refused_settings(user: &Value, object: &Value) -> [Vec<String>; 2] {
    [("CREATE", Value::Null), ("UPDATE", valid())].map(|(operation, old)| {
        let policy = settings(&floor()).policy();
        evaluated::refused(policy, &given(user, operation, object, &old))
    })
}

/// Settings below the floor, each with the refusal.
fn below() -> Vec<(&'static str, Value, &'static str)> {
    let attestors = "the floor of this namespace does not permit these attestors";
    let mode = "the floor of this namespace requires autoApproveBindings: Remove or RemoveNow";
    let exempt = "the floor of this namespace does not permit exemptNodes";
    vec![
        ("authorizedAttestors", json!(["insecure"]), attestors),
        ("authorizedAttestors", json!(["aws", "other"]), attestors),
        ("autoApproveBindings", json!("Report"), mode),
        ("autoApproveBindings", json!("Later"), mode),
        ("exemptNodes", json!(["windows-1"]), exempt),
        ("exemptNodes", json!(["ControlPlane"]), exempt),
    ]
}

#[test]
fn settings_below_the_floor_are_refused_unless_the_user_is_exempt() {
    let none = [Vec::new(), Vec::<String>::new()];
    assert_eq!(refused_settings(&tenant(), &valid()), none);
    for (field, value, message) in below() {
        let mut object = valid();
        object["spec"][field] = value;

        let refused = refused_settings(&tenant(), &object);

        assert_eq!(refused, [[message], [message]], "{field}");
        // The controller writes on behalf of tenants, and responders write no settings.
        for user in [user(CONTROLLER, &[]), user("a", &["responders"])] {
            assert_eq!(refused_settings(&user, &object), refused, "{field}");
        }
        for user in [user("clusterctl", &[]), user("a", &["operators"])] {
            assert_eq!(refused_settings(&user, &object), none, "{field}");
        }
    }
    for (field, value) in [
        ("autoApproveBindings", json!("RemoveNow")),
        ("authorizedAttestors", json!(["tpm", "aws"])),
        ("adoption", json!("Allow")),
    ] {
        let mut object = valid();
        object["spec"][field] = value;
        assert_eq!(refused_settings(&tenant(), &object), none, "{field}");
    }
}

#[test]
fn missing_fields_have_the_secure_value_except_the_mode() {
    let mode = "the floor of this namespace requires autoApproveBindings: Remove or RemoveNow";
    for (field, refusals) in [("exemptNodes", vec![]), ("autoApproveBindings", vec![mode])] {
        let mut object = valid();
        object["spec"].as_object_mut().unwrap().remove(field);

        for refused in refused_settings(&tenant(), &object) {
            assert_eq!(refused, refusals, "{field}");
        }
    }
}

#[test]
fn stored_settings_below_the_floor_stay_until_the_spec_changes() {
    let refused = |object: &Value, old: &Value| {
        let given = given(&tenant(), "UPDATE", object, old);
        evaluated::refused(settings(&floor()).policy(), &given)
    };
    for (field, value, message) in below() {
        let mut old = valid();
        old["spec"][field] = value;
        let mut labeled = old.clone();
        labeled["metadata"]["labels"] = json!({"a": "b"});
        assert!(refused(&labeled, &old).is_empty(), "{field}");
        assert!(refused(&valid(), &old).is_empty(), "{field}");

        let mut changed = old.clone();
        changed["spec"]["adoption"] = json!("Allow");

        assert_eq!(refused(&changed, &old), [message], "{field}");
    }
}

#[test]
fn tenants_cannot_change_the_annotations_about_revocations() {
    let message = "only the controller and responders can change the annotations about revocations";
    let with = |annotations: Value| {
        let mut object = valid();
        object["metadata"]["annotations"] = annotations;
        object
    };
    for key in [
        "attestation.cluster.x-k8s.io/released-machines",
        "attestation.cluster.x-k8s.io/lowest-valid-generation",
    ] {
        let set = with(json!({key: "1", "a": "b"}));
        for (operation, object, old) in [
            ("CREATE", &set, Value::Null),
            ("UPDATE", &set, valid()),
            ("UPDATE", &valid(), set.clone()),
            ("UPDATE", &with(json!({key: "2"})), set.clone()),
        ] {
            let refused = |user: &Value| {
                let given = given(user, operation, object, &old);
                evaluated::refused(settings(&floor()).policy(), &given)
            };

            assert_eq!(refused(&tenant()), [message], "{operation} {key}");
            for user in [
                user(CONTROLLER, &[]),
                user("a", &["responders"]),
                user("clusterctl", &[]),
            ] {
                assert!(refused(&user).is_empty(), "{operation} {key} {user}");
            }
        }
        let other = with(json!({key: "1", "a": "c"}));
        let given = given(&tenant(), "UPDATE", &other, &set);
        assert!(evaluated::refused(settings(&floor()).policy(), &given).is_empty());
    }
}

#[test]
fn a_cluster_protects_only_its_own_kubelet_authentication() {
    let refused = |user: &Value, cluster: &str| {
        let mut given = given(user, "DELETE", &Value::Null, &valid());
        given["params"] = json!({"metadata": {"name": cluster}});
        evaluated::refused(deletion(&floor()).policy(), &given)
    };
    let message = "delete the Cluster before its KubeletAuthentication";
    for user in [
        tenant(),
        user(CONTROLLER, &[]),
        user(
            "system:serviceaccount:kube-system:generic-garbage-collector",
            &[],
        ),
    ] {
        assert_eq!(refused(&user, "prod-1"), [message], "{user}");
        assert!(refused(&user, "prod-2").is_empty(), "{user}");
    }
    assert!(refused(&user("clusterctl", &[]), "prod-1").is_empty());
}

#[test]
fn node_identities_are_written_only_by_the_controller_and_responders() {
    let message = "only the controller and responders can write NodeIdentities";
    let refused = |user: &Value, operation: &str| {
        let given = given(user, operation, &Value::Null, &Value::Null);
        evaluated::refused(identities(&floor()).policy(), &given)
    };
    let responder = user("a", &["responders"]);
    for operation in ["CREATE", "UPDATE", "DELETE"] {
        assert_eq!(refused(&tenant(), operation), [message], "{operation}");
        for user in [CONTROLLER, "clusterctl", KUBERNETES[1], KUBERNETES[2]] {
            let by = user_of(user);
            assert!(refused(&by, operation).is_empty(), "{operation} {by}");
        }
    }
    assert_eq!(refused(&responder, "CREATE"), [message]);
    assert!(refused(&responder, "UPDATE").is_empty());
    assert_eq!(refused(&responder, "DELETE"), [message]);
}

fn user_of(name: &str) -> Value {
    user(name, &[])
}

#[test]
fn names_in_a_floor_are_literals_and_not_expressions() {
    let hostile = "user:a'\"\\] || true || 'a' in ['a";
    let floor = Floor {
        exempt: owned(&[hostile]),
        ..floor()
    };
    let mut object = valid();
    object["spec"]["autoApproveBindings"] = json!("Report");
    let refused = |user: &str| {
        let given = given(&user_of(user), "CREATE", &object, &Value::Null);
        evaluated::refused(settings(&floor).policy(), &given)
    };

    assert_eq!(refused("a").len(), 1);
    assert!(refused(hostile.strip_prefix("user:").unwrap()).is_empty());
}

#[test]
fn a_policy_of_the_floor_matches_only_labeled_namespaces() {
    for (policy, binding) in objects(&floor()) {
        let about = policy.spec.unwrap().match_constraints.unwrap();
        let labels = about.namespace_selector.unwrap().match_labels.unwrap();
        let label = (FLOOR_LABEL.to_owned(), "enforced".to_owned());
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [label]);
        assert_eq!(binding.spec.unwrap().policy_name, policy.metadata.name);
    }
}

#[test]
fn the_packaged_floor_matches_the_rendered_policies() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/floor/policies.yaml");
    let rendered = yaml(&packaged()).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &rendered).unwrap();
    }

    let stored = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        stored == rendered,
        "{} is stale: run this test with UPDATE=1",
        file.display()
    );
}
