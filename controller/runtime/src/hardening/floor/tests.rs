//! Tests that evaluate the policies as CEL, and check the manifest.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::super::evaluated;
use super::*;

mod decisions;

const CONTROLLER: &str =
    "system:serviceaccount:node-attestation-system:node-attestation-controller";

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().copied().map(String::from).collect()
}

/// The floor in the packaged manifest.
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
    // A user name does not match a group, and a group name does not match a user.
    user("operators", &["clusterctl"])
}

/// Settings that satisfy the floor.
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

/// The refusals when valid settings are created, and when they are updated.
fn refused_settings(user: &Value, object: &Value) -> [Vec<String>; 2] {
    [("CREATE", Value::Null), ("UPDATE", valid())].map(|(operation, old)| {
        let policy = settings(&floor()).policy();
        evaluated::refused(policy, &given(user, operation, object, &old))
    })
}

/// Settings that do not satisfy the floor, each with the refusal.
fn below() -> Vec<(&'static str, Value, &'static str)> {
    let attestors = "the floor of this namespace does not permit these attestors";
    let mode = "the floor of this namespace requires autoApproveBindings: Remove or RemoveNow";
    let exempt = "the floor of this namespace requires exemptNodes: []";
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
        // The controller writes on behalf of tenants.
        let controller = user(CONTROLLER, &[]);
        assert_eq!(refused_settings(&controller, &object), refused, "{field}");
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
fn the_mode_and_the_exempt_nodes_must_be_set() {
    for (field, message) in [
        (
            "autoApproveBindings",
            "the floor of this namespace requires autoApproveBindings: Remove or RemoveNow",
        ),
        (
            "exemptNodes",
            "the floor of this namespace requires exemptNodes: []",
        ),
    ] {
        let mut object = valid();
        object["spec"].as_object_mut().unwrap().remove(field);

        for refused in refused_settings(&tenant(), &object) {
            assert_eq!(refused, [message], "{field}");
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
        "attestation.cluster.x-k8s.io/changed-by",
        "attestation.cluster.x-k8s.io/workload-uid",
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
            for user in [user(CONTROLLER, &[]), user("clusterctl", &[])] {
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
        let changed = changed_by_jane(|_| {});
        let given = given(user, operation, &changed, &identity());
        evaluated::refused(identities(&floor()).policy(), &given)
    };
    for operation in ["CREATE", "UPDATE", "DELETE"] {
        assert_eq!(refused(&tenant(), operation), [message], "{operation}");
        for user in [CONTROLLER, "clusterctl", KUBERNETES[1], KUBERNETES[2]] {
            let by = user_of(user);
            assert!(refused(&by, operation).is_empty(), "{operation} {by}");
        }
    }
    for operation in ["CREATE", "DELETE"] {
        assert_eq!(refused(&responder(), operation), [message], "{operation}");
    }
}

const RESET: &str = "attestation.cluster.x-k8s.io/reset";
const CHANGED_BY: &str = "attestation.cluster.x-k8s.io/changed-by";

fn responder() -> Value {
    user("jane", &["responders"])
}

/// A node identity of generation 3 whose previous generation is revoked.
fn identity() -> Value {
    json!({
        "metadata": {
            "name": "prod-1.n1", "resourceVersion": "7", "generation": 4, "managedFields": [],
            "labels": {"a": "b"}, "annotations": {"a": "b", CHANGED_BY: "john"},
        },
        "spec": {
            "nodeName": "n1", "generation": 3, "providerID": "metal:///m1",
            "revoked": {"generation": 2, "at": "2026-11-21T12:00:00Z"},
        },
        "status": {"serial": "1"},
    })
}

/// The node identity after the responder Jane has written this change.
fn changed_by_jane(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = identity();
    object["metadata"]["annotations"][CHANGED_BY] = json!("jane");
    object["metadata"]["generation"] = json!(5);
    object["metadata"]["managedFields"] = json!([{"manager": "a"}]);
    change(&mut object);
    object
}

fn refused_identity(user: &Value, object: &Value) -> Vec<String> {
    let given = given(user, "UPDATE", object, &identity());
    evaluated::refused(identities(&floor()).policy(), &given)
}

/// Revokes the current generation.
fn revoke(object: &mut Value) {
    object["spec"]["revoked"] = json!({"generation": 3, "at": "2026-11-22T12:00:00Z"});
}

/// Resets the current generation.
fn reset(object: &mut Value) {
    object["metadata"]["annotations"][RESET] = json!("3");
}

#[test]
fn responders_can_change_only_the_fields_of_a_revocation_or_a_reset() {
    let only = "responders can only revoke and reset NodeIdentities";
    let acts: [fn(&mut Value); 3] = [revoke, reset, |_| {}];
    for change in acts {
        let object = changed_by_jane(change);
        assert!(
            refused_identity(&responder(), &object).is_empty(),
            "{object}"
        );
    }
    for (path, value) in [
        ("/spec/revoked/generation", json!(1)),
        ("/spec/revoked/at", json!("2026-11-22T12:00:00Z")),
        ("/spec/revoked", json!({"generation": 4})),
        ("/spec/providerID", json!("metal:///m2")),
        ("/spec/generation", json!(4)),
        ("/metadata/labels", json!({})),
        ("/metadata/labels/a", json!("c")),
        ("/metadata/annotations/a", json!("c")),
        ("/status/serial", json!("2")),
    ] {
        let object = changed_by_jane(|object| *object.pointer_mut(path).unwrap() = value);
        assert_eq!(refused_identity(&responder(), &object), [only], "{path}");
        for user in [user(CONTROLLER, &[]), user("a", &["operators"])] {
            assert!(refused_identity(&user, &object).is_empty(), "{path}");
        }
    }
    for (parent, field, value) in [
        ("/spec", "tombstone", json!({"reason": "MachineGone"})),
        ("/metadata", "finalizers", json!(["a"])),
        ("/metadata/annotations", "b", json!("c")),
        ("/metadata/annotations", RESET, json!("2")),
    ] {
        let object = changed_by_jane(|object| object.pointer_mut(parent).unwrap()[field] = value);
        assert_eq!(refused_identity(&responder(), &object), [only], "{field}");
    }
    for (parent, field) in [
        ("/spec", "revoked"),
        ("/spec", "providerID"),
        ("/metadata", "labels"),
        ("/metadata/annotations", "a"),
    ] {
        let object = changed_by_jane(|object| {
            let parent = object.pointer_mut(parent).unwrap();
            parent.as_object_mut().unwrap().remove(field);
        });
        assert_eq!(refused_identity(&responder(), &object), [only], "{field}");
    }
}

#[test]
fn a_storage_migration_can_write_unchanged_node_identities() {
    let message = "only the controller and responders can write NodeIdentities";
    let migrator = user_of("system:serviceaccount:kube-system:storage-version-migrator");
    let written = |change: &dyn Fn(&mut Value)| {
        let mut object = identity();
        object["metadata"]["resourceVersion"] = json!("8");
        change(&mut object);
        refused_identity(&migrator, &object)
    };

    assert!(written(&|_| {}).is_empty());

    for path in [
        "/spec/providerID",
        "/spec/revoked/at",
        "/metadata/labels/a",
        "/metadata/annotations/a",
        "/status/serial",
    ] {
        let changed = written(&|object| *object.pointer_mut(path).unwrap() = json!("c"));
        assert_eq!(changed, [message], "{path}");
    }
    let added = written(&|object| object["spec"]["tombstone"] = json!({}));
    assert_eq!(added, [message]);
    // An update without other changes can add any number of owners of fields.
    let owned = written(&|object| object["metadata"]["managedFields"] = json!([{"manager": "a"}]));
    assert_eq!(owned, [message]);
    let removed = written(&|object| object["status"] = json!({}));
    assert_eq!(removed, [message]);
}

#[test]
fn a_responder_must_write_its_own_user_name() {
    let own = "a responder must write its user name to the annotation changed-by";
    for name in [json!("john"), json!(""), json!("group:responders")] {
        let object = changed_by_jane(|object| {
            revoke(object);
            object["metadata"]["annotations"][CHANGED_BY] = name;
        });
        assert_eq!(refused_identity(&responder(), &object), [own]);
        assert!(refused_identity(&user(CONTROLLER, &[]), &object).is_empty());
    }
    let without = changed_by_jane(|object| {
        revoke(object);
        let annotations = object["metadata"]["annotations"].as_object_mut();
        annotations.unwrap().remove(CHANGED_BY);
    });
    assert_eq!(refused_identity(&responder(), &without), [own]);
}

type Change = fn(&mut Value);

#[test]
fn the_audit_event_of_each_act_names_the_authenticated_user() {
    let audited = |operation: &str, object: &Value| {
        let given = given(&responder(), operation, object, &identity());
        evaluated::audited(identities(&floor()).policy(), &given)
    };
    let acts: [(Change, &str); 4] = [
        (revoke, "generation 3 of node n1 was revoked by jane"),
        (reset, "generation 3 of node n1 was reset by jane"),
        (|object| object["status"] = json!({}), ""),
        (
            |object| object["spec"]["providerID"] = json!("metal:///m2"),
            "",
        ),
    ];
    for (change, text) in acts {
        let object = changed_by_jane(change);
        assert_eq!(audited("UPDATE", &object), text.into(), "{object}");
    }
    assert_eq!(audited("DELETE", &Value::Null), "".into());

    let mut released = valid();
    released["metadata"]["annotations"] =
        json!({"attestation.cluster.x-k8s.io/released-machines": "1"});
    for (object, text) in [
        (
            &released,
            "the decisions about revocations of Cluster prod-1 were changed by jane",
        ),
        (&valid(), ""),
    ] {
        let given = given(&responder(), "UPDATE", object, &valid());
        let audited = evaluated::audited(settings(&floor()).policy(), &given);
        assert_eq!(audited, text.into());
    }
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
