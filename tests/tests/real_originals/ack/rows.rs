//! Tests with manual cases from the table in docs/tenancy-cases.md.

use serde_json::{Value, json};

use super::case::{Case, OTHER_ACCOUNT, THEIRS, arn};
use super::compare::{Rule, compare};
use super::judged;
use crate::stored::stored;

const ACCOUNTS: &str = "ack-role-account-map";
const TEAMS: &str = "ack-role-team-map";

/// A case with annotations and ConfigMaps.
fn carm(annotations: &Value, maps: Vec<(&str, Value)>) -> Case {
    let mut case = Case::new();
    let annotations = annotations.as_object().unwrap().iter();
    let annotations: serde_json::Map<String, Value> = annotations
        .map(|(name, value)| (format!("services.k8s.aws/{name}"), value.clone()))
        .collect();
    case.namespace_with(&json!({}), &json!(annotations));
    for (name, data) in maps {
        case.map(name, &data);
    }
    case
}

/// A case of selectors.
fn selected(specs: Vec<Value>) -> Case {
    let mut case = Case::new();
    case.selectors = true;
    case.namespace_with(&json!({"environment": "dev"}), &json!({}));
    for (index, spec) in specs.into_iter().enumerate() {
        case.selector(&format!("s{index}"), spec);
    }
    case
}

#[test]
fn ack_annotations_and_selectors_match_the_original_except_as_documented() {
    let nodes = arn(THEIRS, "nodes");
    let team = json!({"team-id": "team-a"});
    let account = json!({"owner-account-id": THEIRS});
    let both = json!({"team-id": "team-a", "owner-account-id": THEIRS});
    let of_account = (ACCOUNTS, json!({THEIRS: arn(THEIRS, "of-account")}));
    let of_team = (TEAMS, json!({"team-a": nodes}));
    let of_both = (
        TEAMS,
        json!({"team-a": nodes, "ec2.team-a": arn(THEIRS, "of-service")}),
    );
    let elsewhere = (ACCOUNTS, json!({THEIRS: arn(OTHER_ACCOUNT, "nodes")}));
    let value = |value: &str| (ACCOUNTS, json!({THEIRS: value}));
    let here = json!({"arn": nodes, "namespaceSelector": {"names": ["tenant-a"]}});
    let of_instances = json!({
        "arn": nodes,
        "resourceTypeSelector": [{"group": "ec2.services.k8s.aws", "version": "", "kind": "Instance"}],
        "namespaceSelector": {"names": [], "labelSelector": {"matchLabels": {"environment": "dev"}}},
    });
    let elsewhere_selected = json!({"arn": nodes, "namespaceSelector": {"names": ["tenant-b"]}});
    let mut forged = carm(&json!({}), vec![of_account.clone()]);
    forged.owner_account = THEIRS.to_owned();
    let mut forged_by_another = carm(&account, vec![of_account.clone()]);
    forged_by_another.owner_account = OTHER_ACCOUNT.to_owned();
    let mut hidden = Case::new();
    hidden.namespace = "kube-public".to_owned();
    let annotations = json!({"services.k8s.aws/owner-account-id": THEIRS});
    hidden.namespace_with(&json!({}), &annotations);
    hidden.map(of_account.0, &of_account.1);
    let rows: Vec<(Case, &str, &[Rule])> = vec![
        (carm(&both, vec![of_account.clone(), of_team]), "nodes", &[]),
        (
            carm(&both, vec![of_account.clone(), (TEAMS, json!({}))]),
            "CARMKeyNotFound",
            &[],
        ),
        (carm(&team, vec![of_both]), "of-service", &[]),
        (
            carm(
                &team,
                vec![(TEAMS, json!({"ec2.team-a": "", "team-a": nodes}))],
            ),
            "CARMEmptyValue",
            &[Rule::EmptyServiceKey],
        ),
        (carm(&account, Vec::new()), "CARMMapNotFound", &[]),
        (
            carm(&account, vec![(ACCOUNTS, json!({}))]),
            "CARMKeyNotFound",
            &[],
        ),
        (carm(&account, vec![value("")]), "CARMEmptyValue", &[]),
        (
            carm(&account, vec![elsewhere]),
            "AccountMismatch",
            &[Rule::AccountOfRole],
        ),
        (
            carm(
                &json!({"owner-account-id": "my-ns"}),
                vec![(ACCOUNTS, json!({"my-ns": nodes}))],
            ),
            "InvalidAccount",
            &[Rule::AccountNoNumber],
        ),
        (carm(&account, vec![value("nodes")]), "InvalidRoleARN", &[]),
        (
            carm(&account, vec![value("arn:aws:iam::200000000001:user/a")]),
            "InvalidRoleARN",
            &[Rule::ArnOfNoRole],
        ),
        (
            carm(
                &account,
                vec![value(&format!("roleArn: {nodes}\nexternalID: an-id"))],
            ),
            "nodes",
            &[Rule::Fields],
        ),
        (
            carm(&account, vec![value(&format!("{nodes}\n"))]),
            "nodes",
            &[Rule::WhiteSpace],
        ),
        (
            carm(&json!({}), vec![of_account]),
            "IdentityNotNamed",
            &[Rule::NoAnnotation],
        ),
        (
            forged,
            "IdentityNotNamed",
            &[Rule::NoAnnotation, Rule::StatusAccount],
        ),
        (forged_by_another, "of-account", &[Rule::StatusAccount]),
        (hidden, "of-account", &[Rule::NamespaceIgnored]),
        (selected(Vec::new()), "NoRoleSelector", &[Rule::NoSelector]),
        (
            selected(vec![elsewhere_selected.clone()]),
            "NoRoleSelector",
            &[Rule::NoSelector],
        ),
        (
            selected(vec![here.clone(), elsewhere_selected]),
            "nodes",
            &[],
        ),
        (selected(vec![of_instances.clone()]), "nodes", &[]),
        (
            selected(vec![here, of_instances]),
            "RoleSelectorConflict",
            &[],
        ),
        (
            selected(vec![json!({"arn": ""})]),
            "InvalidRoleSelector",
            &[Rule::InvalidSelector],
        ),
        (
            selected(vec![json!({"arn": nodes}), json!({"arn": ""})]),
            "RoleSelectorConflict",
            &[Rule::InvalidSelector],
        ),
    ];
    let stored = rows.into_iter().map(|(mut case, end, rule)| {
        for object in case.all() {
            *object = stored(object).unwrap_or_else(|error| panic!("{error}: {object:#}"));
        }
        (case, end, rule)
    });
    let rows: Vec<_> = stored.collect();
    let cases: Vec<_> = rows.iter().map(|(case, ..)| case.clone()).collect();
    for ((case, end, rules), answers) in rows.iter().zip(judged(&cases)) {
        let ours = case.resolved();
        let found = compare(case, &ours, &answers.given, &answers.visible);
        let expected = Ok(rules.iter().copied().collect());
        assert_eq!(found, expected, "{case:?}\n{ours:?}\n{answers:?}");
        match ours {
            Ok(plan) => assert!(
                plan.roles[0].arn.to_string().ends_with(&format!("/{end}")),
                "{plan:?}"
            ),
            Err(error) => assert_eq!(error.reason(), *end, "{case:?}"),
        }
    }
}

#[test]
fn the_api_server_refuses_the_alternative_ack_key_format() {
    for key in ["team-id/team-a", "owner-account-id/200000000001"] {
        let mut case = Case::new();
        case.map(TEAMS, &json!({key: arn(THEIRS, "nodes")}));
        let refused = stored(&case.objects[0]).unwrap_err();
        assert!(refused.contains("a valid config key"), "{refused}");
    }
}

#[test]
fn a_selector_without_its_required_fields_is_not_stored() {
    let nodes = arn(THEIRS, "nodes");
    for spec in [
        json!({}),
        json!({"arn": nodes, "namespaceSelector": {}}),
        json!({"arn": nodes, "resourceTypeSelector": [{"kind": "Instance"}]}),
        json!({"arn": nodes, "resourceLabelSelector": {}}),
    ] {
        let refused = stored(&selected(vec![spec.clone()]).objects[1]).unwrap_err();
        assert!(refused.contains("Required value"), "{spec}: {refused}");
    }
}
