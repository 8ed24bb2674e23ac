//! Tests of decisions about revocations that a responder writes.

use super::*;

#[test]
fn responders_can_change_decisions_about_revocations_but_no_settings() {
    let only = "responders can change only the annotations about revocations";
    let own = "a responder must write its user name to the annotation changed-by";
    let refused = |operation: &str, object: &Value| {
        let given = given(&responder(), operation, object, &valid());
        evaluated::refused(settings(&floor()).policy(), &given)
    };
    let with = |annotations: Value| {
        let mut object = valid();
        object["metadata"]["annotations"] = annotations;
        object
    };
    for key in [
        "attestation.cluster.x-k8s.io/released-machines",
        "attestation.cluster.x-k8s.io/lowest-valid-generation",
    ] {
        let named = with(json!({key: "1", CHANGED_BY: "jane"}));
        assert!(refused("UPDATE", &named).is_empty(), "{key}");
        assert_eq!(refused("CREATE", &named), [only], "{key}");
        let unnamed = with(json!({key: "1"}));
        assert_eq!(refused("UPDATE", &unnamed), [own], "{key}");
    }
    let annotated = with(json!({"a": "b", CHANGED_BY: "jane"}));
    assert_eq!(refused("UPDATE", &annotated), [only]);
    let mut changed = with(json!({CHANGED_BY: "jane"}));
    changed["spec"]["adoption"] = json!("Allow");
    assert_eq!(refused("UPDATE", &changed), [only]);
}

#[test]
fn responders_can_only_raise_the_lowest_valid_generation() {
    const KEY: &str = "attestation.cluster.x-k8s.io/lowest-valid-generation";
    let only = "responders can only raise lowest-valid-generation, to a Unix time in seconds";
    let with = |value: Option<&str>, name: &str| {
        let mut object = valid();
        object["metadata"]["annotations"] = json!({CHANGED_BY: name});
        if let Some(value) = value {
            object["metadata"]["annotations"][KEY] = json!(value);
        }
        object
    };
    let refused = |user: &Value, value: Option<&str>, before: Option<&str>| {
        let given = given(user, "UPDATE", &with(value, "jane"), &with(before, "john"));
        evaluated::refused(settings(&floor()).policy(), &given)
    };
    let written = Some("1795849200");
    for (value, before) in [
        (written, None),
        (written, written),
        (Some("1795849201"), written),
        (Some("9999999999"), written),
        (Some("0"), None),
        (None, None),
        // The controller ignores these values.
        (written, Some("-1")),
        (written, Some("18446744073709551615")),
        (Some("a"), Some("a")),
    ] {
        assert!(refused(&responder(), value, before).is_empty(), "{value:?}");
    }
    for value in [
        None,
        Some(""),
        Some("1795849199"),
        Some("10000000000"),
        Some("9223372036854775807"),
        Some("18446744073709551615"),
        Some("+1795849201"),
        Some("01795849201"),
        Some("1795849201 "),
        Some("1795849201\n"),
        Some("-1"),
        Some("a"),
    ] {
        assert_eq!(refused(&responder(), value, written), [only], "{value:?}");
        for user in [user(CONTROLLER, &[]), user("a", &["operators"])] {
            assert!(refused(&user, value, written).is_empty(), "{value:?}");
        }
    }
}
