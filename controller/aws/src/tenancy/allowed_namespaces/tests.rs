use serde_json::{Value, json};

use super::*;

fn labels(labels: &[(&str, &str)]) -> Labels {
    let labels = labels.iter();
    labels
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Whether `allowed` permits a namespace with this name and these labels. A missing or null field does not permit any
/// namespace.
fn permits(allowed: &Value, namespace: &str, of: &[(&str, &str)]) -> Result<bool, InvalidSelector> {
    let allowed: Option<AllowedNamespaces> = serde_json::from_value(allowed.clone()).unwrap();
    let own = labels(&[("kubernetes.io/metadata.name", namespace)]);
    let labels = own.into_iter().chain(labels(of)).collect();
    let permission = allowed.map(|allowed| allowed.permits(namespace, Some(&labels)));
    Ok(permission.transpose()?.flatten().is_some())
}

const DEV: &[(&str, &str)] = &[("environment", "dev"), ("namespace", "default")];

#[test]
fn empty_allowed_namespaces_permit_every_namespace() {
    for all in [
        json!({}),
        json!({"list": null, "selector": null}),
        json!({"list": null}),
        json!({"selector": {}}),
        json!({"list": null, "selector": {}}),
        json!({"selector": {"matchLabels": null}}),
        json!({"selector": {"matchExpressions": null}}),
    ] {
        assert_eq!(permits(&all, "default", &[]), Ok(true), "{all}");
        assert_eq!(permits(&all, "", &[]), Ok(true), "{all}");
    }
}

#[test]
fn an_empty_list_or_selector_does_not_permit_any_namespace() {
    for none in [
        Value::Null,
        json!({"list": []}),
        json!({"list": [], "selector": {}}),
        json!({"list": [], "selector": null}),
        json!({"selector": {"matchLabels": {}}}),
        json!({"selector": {"matchExpressions": []}}),
        json!({"selector": {"matchLabels": {}, "matchExpressions": []}}),
        json!({"list": ["*"]}),
        json!({"list": ["def"]}),
    ] {
        assert_eq!(permits(&none, "default", DEV), Ok(false), "{none}");
    }
}

#[test]
fn a_namespace_list_permits_only_the_listed_namespaces() {
    let list = json!({"list": ["default"]});
    assert_eq!(permits(&list, "default", &[]), Ok(true));
    assert_eq!(permits(&list, "other", &[]), Ok(false));
}

#[test]
fn a_namespace_is_permitted_by_the_list_or_the_selector() {
    let union = json!({"list": ["other"], "selector": {"matchLabels": {"environment": "dev"}}});
    assert_eq!(permits(&union, "other", &[]), Ok(true));
    assert_eq!(permits(&union, "default", DEV), Ok(true));
    assert_eq!(permits(&union, "default", &[]), Ok(false));
}

#[test]
fn a_selector_matches_only_if_all_its_requirements_match() {
    let both = |value| {
        json!({"list": null, "selector": {
            "matchLabels": {"namespace": "default"},
            "matchExpressions": [{"key": "environment", "operator": "In", "values": [value]}],
        }})
    };
    assert_eq!(permits(&both("dev"), "default", DEV), Ok(true));
    assert_eq!(permits(&both("prod"), "default", DEV), Ok(false));
    assert_eq!(
        permits(&both("dev"), "default", &[("environment", "dev")]),
        Ok(false)
    );
}

fn expression(key: &str, operator: &str, values: &Value) -> Value {
    json!({"selector": {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}})
}

#[test]
fn selector_operators_match_kubernetes_semantics() {
    let by_name = expression("kubernetes.io/metadata.name", "In", &json!(["default"]));
    assert_eq!(permits(&by_name, "default", &[]), Ok(true));
    assert_eq!(permits(&by_name, "other", &[]), Ok(false));

    let absent = expression("environment", "DoesNotExist", &Value::Null);
    assert_eq!(permits(&absent, "default", &[]), Ok(true));
    assert_eq!(permits(&absent, "default", DEV), Ok(false));

    let present = expression("environment", "Exists", &json!([]));
    assert_eq!(permits(&present, "default", DEV), Ok(true));
    assert_eq!(permits(&present, "default", &[]), Ok(false));

    let not = expression("environment", "NotIn", &json!(["prod"]));
    assert_eq!(permits(&not, "default", DEV), Ok(true));
    assert_eq!(permits(&not, "default", &[]), Ok(true));
    assert_eq!(
        permits(&not, "default", &[("environment", "prod")]),
        Ok(false)
    );
}

#[test]
fn an_invalid_selector_is_an_error_and_selects_nothing() {
    use InvalidSelector::{Key, Operator, Value as InvalidValue, ValuesGiven, ValuesMissing};
    let of = |operator: &str| (operator.to_owned(), "environment".to_owned());
    let missing = |operator| {
        let (operator, key) = of(operator);
        ValuesMissing { operator, key }
    };
    let given = |operator| {
        let (operator, key) = of(operator);
        ValuesGiven { operator, key }
    };
    let environment = |operator, values| expression("environment", operator, &values);
    let of_labels = |labels: Value| json!({"selector": {"matchLabels": labels}});
    for (invalid, error) in [
        (environment("In", json!([])), missing("In")),
        (environment("In", Value::Null), missing("In")),
        (environment("NotIn", json!([])), missing("NotIn")),
        (environment("Exists", json!(["dev"])), given("Exists")),
        (
            environment("DoesNotExist", json!(["dev"])),
            given("DoesNotExist"),
        ),
        (
            environment("Near", json!(["dev"])),
            Operator("Near".to_owned()),
        ),
        (environment("in", json!(["dev"])), Operator("in".to_owned())),
        (
            environment("In", json!(["a b"])),
            InvalidValue("a b".to_owned()),
        ),
        (expression("", "Exists", &Value::Null), Key(String::new())),
        (
            expression("a/", "Exists", &Value::Null),
            Key("a/".to_owned()),
        ),
        (
            expression("A/b", "Exists", &Value::Null),
            Key("A/b".to_owned()),
        ),
        (
            expression("a..b/c", "Exists", &Value::Null),
            Key("a..b/c".to_owned()),
        ),
        (
            expression("-a", "Exists", &Value::Null),
            Key("-a".to_owned()),
        ),
        (of_labels(json!({"a/b/c": "d"})), Key("a/b/c".to_owned())),
        (of_labels(json!({"a": "-"})), InvalidValue("-".to_owned())),
        (
            of_labels(json!({"a": "b".repeat(64)})),
            InvalidValue("b".repeat(64)),
        ),
    ] {
        assert_eq!(permits(&invalid, "default", DEV), Err(error), "{invalid}");
    }
}

#[test]
fn every_valid_label_format_is_supported() {
    for (key, value) in [
        ("a", ""),
        ("A_b.c-9", "x"),
        ("example.com/a", "A_b.c-9"),
        (&"a".repeat(63), &"b".repeat(63)),
    ] {
        let selector = json!({"selector": {"matchLabels": {key: value}}});
        assert_eq!(
            permits(&selector, "default", &[(key, value)]),
            Ok(true),
            "{key}={value}"
        );
        assert_eq!(
            permits(&selector, "default", &[]),
            Ok(false),
            "{key}={value}"
        );
    }
}

#[test]
fn the_namespace_list_is_checked_before_an_invalid_selector() {
    let mut invalid = expression("environment", "Near", &json!([]));
    invalid["list"] = json!(["default"]);
    assert_eq!(permits(&invalid, "default", &[]), Ok(true));
    let error = InvalidSelector::Operator("Near".to_owned());
    assert_eq!(permits(&invalid, "other", &[]), Err(error));
}

#[test]
fn a_permission_contains_the_rule_that_grants_it() {
    let union = json!({"list": ["other"], "selector": {"matchLabels": {"environment": "dev"}}});
    let union: AllowedNamespaces = serde_json::from_value(union).unwrap();
    let dev = labels(DEV);
    let rule = |allowed: &AllowedNamespaces, namespace| allowed.permits(namespace, Some(&dev));
    assert_eq!(rule(&union, "other"), Ok(Some(Permission::Listed)));
    assert_eq!(rule(&union, "default"), Ok(Some(Permission::Selected)));
    let all = AllowedNamespaces::default();
    assert_eq!(rule(&all, "default"), Ok(Some(Permission::Everybody)));
}

#[test]
fn a_selector_does_not_permit_a_missing_namespace() {
    let absent =
        json!({"selector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}});
    let allowed: AllowedNamespaces = serde_json::from_value(absent).unwrap();
    assert_eq!(allowed.permits("default", None), Ok(None));
    let selected = Ok(Some(Permission::Selected));
    assert_eq!(allowed.permits("default", Some(&Labels::new())), selected);
}

#[test]
fn an_object_without_a_namespace_is_not_permitted_by_name() {
    assert_eq!(permits(&json!({"list": [""]}), "", &[]), Ok(false));
    let absent = expression("environment", "DoesNotExist", &Value::Null);
    assert_eq!(permits(&absent, "", &[]), Ok(false));
}
