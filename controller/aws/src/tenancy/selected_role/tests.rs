use serde_json::{Value, json};

use super::*;
use crate::tenancy::testing::{TENANT, arn, namespace, objects, summary};

fn with(selectors: &[(&str, Value)]) -> Objects {
    let mut objects = objects();
    namespace(&mut objects, TENANT, &[("environment", "dev")], &[]);
    for (name, spec) in selectors {
        objects.put_role_selector(name, Some(&spec.to_string()));
    }
    objects
}

fn role(selectors: &[(&str, Value)]) -> Result<Vec<String>, ResolutionError> {
    let labels = Labels::from([("pool".to_owned(), "a".to_owned())]);
    resolve(&with(selectors), TENANT, &labels).map(|plan| summary(&plan).1)
}

#[test]
fn exactly_one_selector_must_match() {
    let of = |names: &[&str]| json!({"arn": arn("a"), "namespaceSelector": {"names": names}});
    assert_eq!(role(&[]), Err(ResolutionError::NoRoleSelector));
    assert_eq!(
        role(&[("one", of(&["tenant-b"]))]),
        Err(ResolutionError::NoRoleSelector)
    );
    assert_eq!(
        role(&[("one", of(&[TENANT])), ("two", of(&["tenant-b"]))]),
        Ok(vec![arn("a")])
    );

    let error = role(&[("one", of(&[TENANT])), ("two", of(&["tenant-b", TENANT]))]).unwrap_err();
    let names = vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(error, ResolutionError::RoleSelectorConflict(names));
    assert_eq!(error.reason(), "RoleSelectorConflict");
    assert_eq!(ResolutionError::NoRoleSelector.reason(), "NoRoleSelector");
}

#[test]
fn a_selector_matches_only_if_all_its_groups_match() {
    let instance =
        json!({"group": "ec2.services.k8s.aws", "version": "v1alpha1", "kind": "Instance"});
    let all = json!({
        "arn": arn("a"),
        "namespaceSelector": {"names": [TENANT], "labelSelector": {"matchLabels": {"environment": "dev"}}},
        "resourceTypeSelector": [{"group": "s3.services.k8s.aws"}, instance],
        "resourceLabelSelector": {"matchLabels": {"pool": "a"}},
    });
    assert_eq!(role(&[("one", all.clone())]), Ok(vec![arn("a")]));
    assert_eq!(
        role(&[("one", json!({"arn": arn("a")}))]),
        Ok(vec![arn("a")])
    );

    for (pointer, other) in [
        ("/namespaceSelector/names/0", "tenant-b"),
        (
            "/namespaceSelector/labelSelector/matchLabels/environment",
            "prod",
        ),
        ("/resourceTypeSelector/1/group", "rds.services.k8s.aws"),
        ("/resourceTypeSelector/1/version", "v1"),
        ("/resourceTypeSelector/1/kind", "Subnet"),
        ("/resourceLabelSelector/matchLabels/pool", "b"),
    ] {
        let mut changed = all.clone();
        *changed.pointer_mut(pointer).unwrap() = json!(other);
        assert_eq!(
            role(&[("one", changed)]),
            Err(ResolutionError::NoRoleSelector),
            "{pointer}"
        );
    }
}

#[test]
fn an_empty_resource_type_field_matches_every_value() {
    for field in ["group", "version", "kind"] {
        let mut instance =
            json!({"group": "ec2.services.k8s.aws", "version": "v1alpha1", "kind": "Instance"});
        instance[field] = json!("");
        let selector = json!({"arn": arn("a"), "resourceTypeSelector": [instance]});
        assert_eq!(role(&[("one", selector)]), Ok(vec![arn("a")]), "{field}");
    }
}

#[test]
fn an_invalid_selector_that_matches_is_refused() {
    for invalid in [
        json!({"arn": ""}),
        json!({"arn": "nodes"}),
        json!({"arn": arn("a"), "namespaceSelector": {"names": [TENANT, ""]}}),
        json!({"arn": arn("a"), "namespaceSelector": {"names": [TENANT, TENANT]}}),
        json!({"arn": arn("a"), "resourceTypeSelector": [{}]}),
        json!({"arn": arn("a"), "resourceTypeSelector": [{"kind": "Instance"}, {"kind": "Instance"}]}),
    ] {
        let error = role(&[("one", invalid.clone())]).unwrap_err();
        assert_eq!(error.reason(), "InvalidRoleSelector", "{invalid}");
        let beside = role(&[("one", invalid.clone()), ("two", json!({"arn": arn("a")}))]);
        assert_eq!(
            beside.unwrap_err().reason(),
            "RoleSelectorConflict",
            "{invalid}"
        );
    }
}

#[test]
fn an_empty_label_key_is_invalid() {
    let mut objects = with(&[]);
    let selector = json!({"arn": arn("a"), "resourceLabelSelector": {"matchLabels": {"": ""}}});
    objects.put_role_selector("one", Some(&selector.to_string()));
    let labels = Labels::from([(String::new(), String::new())]);
    let error = resolve(&objects, TENANT, &labels).unwrap_err();
    assert_eq!(error.reason(), "InvalidRoleSelector");
}

#[test]
fn an_unreadable_selector_is_refused_and_can_conflict() {
    let later = json!({"arn": arn("a"), "namespaceSelector": {
        "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
    }});
    let error = role(&[("one", later.clone())]).unwrap_err();
    assert_eq!(error.reason(), "InvalidRoleSelector");
    let beside = role(&[("one", later), ("two", json!({"arn": arn("a")}))]);
    assert_eq!(beside.unwrap_err().reason(), "RoleSelectorConflict");
}
