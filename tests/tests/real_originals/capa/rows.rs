//! Tests with manual cases: all forms of `allowedNamespaces`, and the chains in the table in docs/tenancy-cases.md.

use std::collections::BTreeSet;

use kubelet_authenticator_test_support::sts::Trust;
use serde_json::{Value, json};

use super::case::{Case, THEIRS, merge, trust};
use super::compare::Rule;
use super::sides::{Bed, Ours, Sides, Theirs};
use super::{judged, shown};
use crate::objects::CAPA_NAMESPACE;
use crate::stored::{NAMESPACES, stored};

const ROLE: &str = "AWSClusterRoleIdentity";
const STATIC: &str = "AWSClusterStaticIdentity";
const CONTROLLER: &str = "AWSClusterControllerIdentity";
const DEFAULT: (&str, &str) = (CONTROLLER, "default");

/// The case as the API server stores it.
#[track_caller]
fn through_the_api_server(mut case: Case) -> Case {
    for object in case.all() {
        *object = stored(object).unwrap_or_else(|error| panic!("{error}: {object:#}"));
    }
    case
}

/// Whether both sides permit the case. An error in the selector differs from a refusal.
fn answer(sides: &Sides) -> &'static str {
    match (&sides.ours.end, &sides.theirs.end) {
        (Ours::Keys(_), Theirs::Keys(_)) => "yes",
        (Ours::Unresolved(error), Theirs::Unresolved(_)) => match error.reason() {
            "UsageUnauthorized" => "no",
            "BadSelector" => "invalid",
            _ => "?",
        },
        _ => "?",
    }
}

#[test]
fn every_kind_of_allowed_namespaces_matches_capa() {
    let dev = json!({"key": "environment", "operator": "In", "values": ["dev"]});
    let expression = |key: &str, operator: &str, values: Value| {
        let mut expression = json!({"key": key, "operator": operator});
        merge(&mut expression, json!({"values": values}));
        json!({"selector": {"matchExpressions": [expression]}})
    };
    let [own, other] = NAMESPACES;
    // The results for a cluster in tenant-a, which has the label environment=dev, and in tenant-b, which has
    // environment=prod.
    let rows = [
        (json!("REMOVED"), ["no", "no"]),
        (json!(null), ["no", "no"]),
        (json!({}), ["yes", "yes"]),
        (json!({"list": null, "selector": {}}), ["yes", "yes"]),
        (json!({"list": null}), ["yes", "yes"]),
        (json!({"list": null, "selector": null}), ["yes", "yes"]),
        (json!({"list": [], "selector": null}), ["no", "no"]),
        (json!({"selector": {"matchLabels": null}}), ["yes", "yes"]),
        (json!({"list": []}), ["no", "no"]),
        (json!({"selector": {}}), ["yes", "yes"]),
        (json!({"list": [], "selector": {}}), ["no", "no"]),
        (json!({"selector": {"matchLabels": {}}}), ["no", "no"]),
        (json!({"selector": {"matchExpressions": []}}), ["no", "no"]),
        (
            json!({"selector": {"matchLabels": {}, "matchExpressions": []}}),
            ["no", "no"],
        ),
        (json!({"list": [own]}), ["yes", "no"]),
        (json!({"list": [other, own]}), ["yes", "yes"]),
        (json!({"list": ["*"]}), ["no", "no"]),
        (json!({"list": ["tenant-*"]}), ["no", "no"]),
        (json!({"list": [""]}), ["no", "no"]),
        (
            json!({"list": [other], "selector": {"matchLabels": {"environment": "dev"}}}),
            ["yes", "yes"],
        ),
        (
            json!({"list": [], "selector": {"matchLabels": {"environment": "dev"}}}),
            ["yes", "no"],
        ),
        (
            json!({"selector": {"matchLabels": {"kubernetes.io/metadata.name": own}, "matchExpressions": [dev]}}),
            ["yes", "no"],
        ),
        (
            json!({"selector": {"matchLabels": {"kubernetes.io/metadata.name": other}, "matchExpressions": [dev]}}),
            ["no", "no"],
        ),
        (
            expression("kubernetes.io/metadata.name", "In", json!([own])),
            ["yes", "no"],
        ),
        (
            expression("absent", "DoesNotExist", json!("REMOVED")),
            ["yes", "yes"],
        ),
        (
            expression("environment", "Exists", json!("REMOVED")),
            ["yes", "yes"],
        ),
        (
            expression("environment", "NotIn", json!(["prod"])),
            ["yes", "no"],
        ),
        (
            expression("environment", "In", json!([])),
            ["invalid", "invalid"],
        ),
        (
            expression("environment", "NotIn", json!([])),
            ["invalid", "invalid"],
        ),
        (
            expression("environment", "Exists", json!(["dev"])),
            ["invalid", "invalid"],
        ),
        (
            expression("environment", "Is", json!(["dev"])),
            ["invalid", "invalid"],
        ),
        (
            expression("a/b/c", "Exists", json!("REMOVED")),
            ["invalid", "invalid"],
        ),
        (
            json!({"list": [own], "selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}),
            ["yes", "invalid"],
        ),
    ];
    let mut bed = Bed::start();
    for (number, (allowed, expected)) in rows.into_iter().enumerate() {
        let [a, b] = [0, 1].map(|namespace| {
            let case = Case::new(10 * number + namespace);
            let allowed = json!({"allowedNamespaces": allowed});
            let case = case.with_static("one", allowed).of(STATIC, "one");
            let case = if namespace == 0 {
                case
            } else {
                case.in_the_other_namespace()
            };
            judged(&mut bed, through_the_api_server(case))
        });
        assert!(a.1.is_empty() && b.1.is_empty(), "{:?} {:?}", a.1, b.1);
        let found = [answer(&a.0), answer(&b.0)];
        assert_eq!(found, expected, "{allowed}\n{}", shown(&a.0));
    }
}

#[test]
fn an_identity_outside_the_provider_schema_is_not_stored() {
    let kind = Case::new(1)
        .of("AWSServiceAccountIdentity", "nodes")
        .cluster;
    let no_name = Case::new(1).of(ROLE, "").cluster;
    let short = Case::new(1).with_role("r", DEFAULT, json!({"durationSeconds": 899}));
    for object in [&kind, &no_name, short.objects.last().unwrap()] {
        let refused = stored(object).unwrap_err();
        assert!(refused.contains("Invalid"), "{refused}");
    }
}

#[test]
fn capa_identity_chains_match_the_original_except_as_documented() {
    use Rule::{
        DurationDefault, DurationShortened, InvalidRole, NilSource, NoIdentityRef, Partition,
        PolicyArns, SameName, SecretFirst, SecretNotPrintable, SessionNameDefault, TooDeep,
    };
    let named = json!({"sessionName": "session", "durationSeconds": 3600});
    let with = |more: Value| {
        let mut fields = named.clone();
        merge(&mut fields, more);
        fields
    };
    let nobody = json!({"allowedNamespaces": {"list": []}});
    let others = json!({"allowedNamespaces": {"list": ["tenant-b"]}});
    let case = || Case::new(1).with_controller();
    let over = |name: &str| {
        case().with_role("jump", DEFAULT, named.clone()).with_role(
            name,
            (ROLE, "jump"),
            named.clone(),
        )
    };
    let with_trust = |mut case: Case, external_id: &str| {
        case.trusts.last_mut().unwrap().1 = trust().external_id(external_id);
        case
    };
    let mut untrusted = case().with_role("r", DEFAULT, named.clone()).of(ROLE, "r");
    untrusted.trusts.last_mut().unwrap().1 = Trust::of("arn:aws:iam::999999999999:root");
    let mut namespace_ignored = case().of(DEFAULT.0, DEFAULT.1);
    namespace_ignored.cluster["spec"]["identityRef"]["namespace"] = json!("tenant-b");
    let mut annotated = case().of(DEFAULT.0, DEFAULT.1);
    let annotations =
        json!({"services.k8s.aws/team-id": "a", "services.k8s.aws/owner-account-id": THEIRS});
    annotated.objects[0]["metadata"]["annotations"] = annotations;
    let key = |case: Case, id: &str, secret: &str| {
        let data = [(id, "AKIAUNKNOWN"), (secret, "s3cret")];
        case.with(
            STATIC,
            "s",
            json!({"allowedNamespaces": {}, "secretRef": "s"}),
        )
        .with_secret(CAPA_NAMESPACE, "s", &data)
        .of(STATIC, "s")
    };
    let token = [
        ("AccessKeyID", "A"),
        ("SecretAccessKey", "B"),
        ("SessionToken", "C"),
    ];
    let temporary = case()
        .with(
            STATIC,
            "s",
            json!({"allowedNamespaces": {}, "secretRef": "s"}),
        )
        .with_secret(CAPA_NAMESPACE, "s", &token)
        .with_role("r", (STATIC, "s"), with(json!({"durationSeconds": 7200})))
        .of(ROLE, "r");
    let only_theirs = |name: &str| {
        let spec = json!({"allowedNamespaces": {}, "secretRef": name});
        let data = [
            ("AccessKeyID", "AKIAUNKNOWN"),
            ("SecretAccessKey", "s3cret"),
        ];
        let case = Case::new(1).with(STATIC, "s", spec).of(STATIC, "s");
        case.with_secret(NAMESPACES[0], "s", &data)
    };
    let rows: Vec<(Case, &str, &[Rule])> = vec![
        (case(), "keys", &[]),
        (Case::new(1).with(DEFAULT.0, DEFAULT.1, others.clone()), "UsageUnauthorized", &[NoIdentityRef]),
        (Case::new(1), "IdentityNotFound", &[NoIdentityRef]),
        (Case::new(1).of(CONTROLLER, "default"), "IdentityNotFound", &[]),
        (case().of(CONTROLLER, "other"), "NotSingleton", &[]),
        (namespace_ignored, "keys", &[]),
        (annotated, "keys", &[]),
        (case().with_role("r", DEFAULT, named.clone()).of(ROLE, "r"), "keys", &[]),
        (case().with_role("r", DEFAULT, json!({})).of(ROLE, "r"), "keys", &[DurationDefault, SessionNameDefault]),
        (case().with_static("s", json!({})).with_role("r", (STATIC, "s"), named.clone()).of(ROLE, "r"), "keys", &[]),
        (over("r").of(ROLE, "r"), "keys", &[]),
        (
            Case::new(1).with(DEFAULT.0, DEFAULT.1, nobody.clone()).with_role("r", DEFAULT, named.clone()).of(ROLE, "r"),
            "SourceUsageUnauthorized",
            &[],
        ),
        (
            case().with_static("r", others.clone()).with_role("r", (STATIC, "r"), named.clone()).of(ROLE, "r"),
            "SourceUsageUnauthorized",
            &[SameName],
        ),
        (super::generate::deep(1), "ChainTooDeep", &[TooDeep]),
        (
            case().with_role("r", DEFAULT, json!({"sourceIdentityRef": "REMOVED"})).of(ROLE, "r"),
            "MissingSource",
            &[NilSource],
        ),
        (only_theirs("s"), "SecretNotFound", &[]),
        (only_theirs("../tenant-a/s"), "SecretNotFound", &[]),
        (only_theirs("tenant-a/s"), "SecretNotFound", &[]),
        (
            case().with_static("s", json!({})).with_secret(NAMESPACES[0], "s", &token).of(STATIC, "s"),
            "keys",
            &[],
        ),
        (key(case(), "accessKeyID", "SecretAccessKey"), "SecretMalformed", &[]),
        (key(case(), "AccessKeyID", "secretAccessKey"), "SecretMalformed", &[]),
        (
            case()
                .with_static("s", json!({"secretRef": "line"}))
                .with_secret(CAPA_NAMESPACE, "line", &[("AccessKeyID", "AKIAUNKNOWN\n"), ("SecretAccessKey", "s3cret")])
                .of(STATIC, "s"),
            "SecretMalformed",
            &[SecretNotPrintable],
        ),
        (temporary, "keys", &[DurationShortened]),
        (
            over("r").with_role("q", (ROLE, "r"), with(json!({"durationSeconds": 7200}))).of(ROLE, "q"),
            "keys",
            &[DurationShortened],
        ),
        (case().with_static("s", others.clone()).of(STATIC, "s"), "UsageUnauthorized", &[]),
        (
            case().with(STATIC, "s", json!({"allowedNamespaces": others["allowedNamespaces"], "secretRef": "gone"})).of(STATIC, "s"),
            "UsageUnauthorized",
            &[SecretFirst],
        ),
        (case().with_role("r", DEFAULT, with(others)).of(ROLE, "r"), "UsageUnauthorized", &[]),
        (
            with_trust(case().with_role("r", DEFAULT, with(json!({"externalID": "an-id"}))), "an-id").of(ROLE, "r"),
            "keys",
            &[],
        ),
        (with_trust(case().with_role("r", DEFAULT, named.clone()), "an-id").of(ROLE, "r"), "AccessDenied", &[]),
        (
            with_trust(case().with_role("r", DEFAULT, with(json!({"externalID": "of-another"}))), "an-id").of(ROLE, "r"),
            "AccessDenied",
            &[],
        ),
        (
            with_trust(
                over("q").with_role("r", (ROLE, "q"), with(json!({"externalID": "outer-alone"}))),
                "outer-alone",
            )
            .of(ROLE, "r"),
            "keys",
            &[],
        ),
        (untrusted, "AccessDenied", &[]),
        (
            case()
                .with_role(
                    "r",
                    DEFAULT,
                    with(json!({"policyARNs": ["arn:aws:iam::aws:policy/ReadOnly"], "inlinePolicy": "{\"Version\": \"2012-10-17\"}"})),
                )
                .of(ROLE, "r"),
            "keys",
            &[PolicyArns],
        ),
        (
            case().with_role("r", DEFAULT, with(json!({"policyARNs": ["nothing"]}))).of(ROLE, "r"),
            "InvalidRole",
            &[PolicyArns],
        ),
        (case().with_role("r", DEFAULT, with(json!({"roleARN": "nodes"}))).of(ROLE, "r"), "InvalidRoleARN", &[InvalidRole]),
        (case().with_role("r", DEFAULT, with(json!({"sessionName": "a"}))).of(ROLE, "r"), "InvalidRole", &[InvalidRole]),
        (
            case()
                .with_role("r", DEFAULT, with(json!({"roleARN": "arn:aws-cn:iam::200000000001:role/nodes"})))
                .of(ROLE, "r"),
            "PartitionMismatch",
            &[Partition],
        ),
    ];
    let mut bed = Bed::start();
    for (number, (mut case, end, rules)) in rows.into_iter().enumerate() {
        case.cluster["metadata"]["name"] = json!(format!("row{number}"));
        let (sides, found) = judged(&mut bed, through_the_api_server(case));
        let ours = sides.ours.end.to_string();
        assert_eq!(ours, end, "row {number}: {}", shown(&sides));
        let expected = rules.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(found, expected, "row {number}: {}", shown(&sides));
    }
}

#[test]
fn a_source_loop_that_crashes_the_provider_is_an_error() {
    for (number, chain) in [&["a", "b"][..], &["a"]].into_iter().enumerate() {
        let mut case = Case::new(number).of(ROLE, chain[0]);
        for (index, name) in chain.iter().enumerate() {
            let source = chain[(index + 1) % chain.len()];
            case = case.with_role(name, (ROLE, source), json!({}));
        }
        let case = through_the_api_server(case);
        assert_eq!(Bed::start().resolution_of(&case), Err("ChainLoop"));
        let log = Bed::start().kill(&case);
        assert!(log.contains("fatal error: stack overflow"), "{log}");
    }
}
