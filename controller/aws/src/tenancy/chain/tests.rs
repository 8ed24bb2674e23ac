use serde_json::{Value, json};

use super::*;
use crate::tenancy::allowed_namespaces::{InvalidSelector, Permission};
use crate::tenancy::role::{InvalidRoleArn, InvalidRoleSpec};
use crate::tenancy::testing::{
    TENANT, arn, identity, namespace, objects, put, role, secret, static_identity, summary,
};

mod roots;

const CONTROLLER: &str = "AWSClusterControllerIdentity/default";

fn of(name: &str) -> String {
    format!("AWSClusterRoleIdentity/{name}")
}

fn resolved(objects: &Objects, name: &str) -> Result<Plan, ResolutionError> {
    let tenant = ClusterPlace {
        namespace: TENANT,
        region: Some("eu-west-1"),
    };
    resolve(objects, identity(name), tenant, &mut Vec::new())
}

fn planned(objects: &Objects, name: &str) -> (String, Vec<String>) {
    summary(&resolved(objects, name).unwrap())
}

fn refused(objects: &Objects, name: &str) -> ResolutionError {
    resolved(objects, name).unwrap_err()
}

#[test]
fn the_controller_identity_uses_the_controller_credentials() {
    let plan = resolved(&objects(), CONTROLLER).unwrap();
    assert_eq!(summary(&plan), ("controller".to_owned(), Vec::new()));
    assert_eq!(plan.account(), None);
    let link = Link {
        identity: identity(CONTROLLER),
        permission: Permission::Everybody,
    };
    assert_eq!((plan.chain, plan.warnings), (vec![link], Vec::new()));
}

#[test]
fn a_controller_identity_with_another_name_is_refused() {
    let mut objects = objects();
    put(
        &mut objects,
        "AWSClusterControllerIdentity/other",
        &json!({"allowedNamespaces": {}}),
    );
    let error = refused(&objects, "AWSClusterControllerIdentity/other");
    assert_eq!(error, ResolutionError::NotSingleton("other".to_owned()));
    assert_eq!(error.reason(), "NotSingleton");
}

#[test]
fn the_error_names_a_missing_identity() {
    let mut objects = objects();
    objects.remove_identity(IdentityKind::Controller, "", "default");
    let error = refused(&objects, CONTROLLER);
    assert_eq!(
        error,
        ResolutionError::IdentityNotFound {
            identity: identity(CONTROLLER)
        }
    );
    assert_eq!(error.reason(), "IdentityNotFound");
    assert!(
        error.to_string().contains("AutoControllerIdentityCreator"),
        "{error}"
    );

    put(
        &mut objects,
        &of("a"),
        &role("AWSClusterStaticIdentity/none", "a"),
    );
    let error = refused(&objects, &of("a"));
    let missing = identity("AWSClusterStaticIdentity/none");
    assert_eq!(
        error,
        ResolutionError::IdentityNotFound { identity: missing }
    );
}

#[test]
fn an_unreadable_identity_is_invalid() {
    let mut objects = objects();
    let v1alpha3 = json!({"allowedNamespaces": {}, "secretRef": {"name": "a", "namespace": "b"}});
    put(&mut objects, "AWSClusterStaticIdentity/a", &v1alpha3);
    assert_eq!(
        refused(&objects, "AWSClusterStaticIdentity/a").reason(),
        "IdentityInvalid"
    );
}

#[test]
fn an_invalid_identity_is_reported_only_to_permitted_namespaces() {
    let name = "AWSClusterStaticIdentity/a";
    let refusal = |allowed: Value| {
        let mut objects = objects();
        let spec = json!({"allowedNamespaces": allowed, "secretRef": {"name": "theirs"}});
        put(&mut objects, name, &spec);
        refused(&objects, name)
    };
    let permitted = refusal(json!({"list": [TENANT]}));
    assert_eq!(permitted.reason(), "IdentityInvalid");
    assert!(
        permitted.to_string().contains("invalid type: map"),
        "{permitted}"
    );

    for others in [
        json!({"list": ["tenant-b"]}),
        json!({"list": []}),
        Value::Null,
    ] {
        let error = refusal(others);
        assert_eq!(error.reason(), "UsageUnauthorized");
        assert!(!error.to_string().contains("invalid type"), "{error}");
    }
    assert_eq!(
        refusal(json!({"selector": {"matchExpressions": [{"key": "a", "operator": "NotIn"}]}}))
            .reason(),
        "BadSelector"
    );
    // It is unknown which namespaces the identity permits.
    let unknown = refusal(json!(["tenant-b"]));
    assert_eq!(
        unknown.to_string(),
        "AWSClusterStaticIdentity/a is invalid: spec.allowedNamespaces is malformed"
    );
}

#[test]
fn a_role_is_assumed_with_the_controllers_credentials() {
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    assert_eq!(
        planned(&objects, &of("a")),
        ("controller".to_owned(), vec![arn("a")])
    );
    let plan = resolved(&objects, &of("a")).unwrap();
    assert_eq!(plan.account(), Some("111122223333"));
}

#[test]
fn a_role_is_assumed_with_an_access_key() {
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    put(
        &mut objects,
        &of("a"),
        &role("AWSClusterStaticIdentity/keys", "a"),
    );
    assert_eq!(
        planned(&objects, &of("a")),
        ("AKIA1".to_owned(), vec![arn("a")])
    );
}

#[test]
fn nested_roles_are_assumed_from_the_innermost_outward() {
    let mut objects = objects();
    put(&mut objects, &of("jump"), &role(CONTROLLER, "jump"));
    put(&mut objects, &of("a"), &role(&of("jump"), "a"));
    let roles = vec![arn("jump"), arn("a")];
    assert_eq!(
        planned(&objects, &of("a")),
        ("controller".to_owned(), roles)
    );
    let plan = resolved(&objects, &of("a")).unwrap();
    let chain: Vec<_> = plan
        .chain
        .iter()
        .map(|link| link.identity.to_string())
        .collect();
    assert_eq!(chain, [of("a"), of("jump"), CONTROLLER.to_owned()]);
}

#[test]
fn every_identity_of_a_chain_must_permit_the_namespace() {
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(CONTROLLER, "a"));
    assert!(resolved(&objects, &of("a")).is_ok());

    let others = json!({"list": ["tenant-b"]});
    put(
        &mut objects,
        CONTROLLER,
        &json!({"allowedNamespaces": others}),
    );
    let error = refused(&objects, &of("a"));
    let source = ResolutionError::SourceUsageUnauthorized {
        identity: identity(CONTROLLER),
        namespace: TENANT.to_owned(),
    };
    assert_eq!(error, source);
    assert_eq!(error.reason(), "SourceUsageUnauthorized");

    let mut own = role(CONTROLLER, "a");
    own["allowedNamespaces"] = others;
    put(&mut objects, &of("a"), &own);
    let error = refused(&objects, &of("a"));
    let usage = ResolutionError::UsageUnauthorized {
        identity: identity(&of("a")),
        namespace: TENANT.to_owned(),
    };
    assert_eq!(error, usage);
    assert_eq!(error.reason(), "UsageUnauthorized");
}

#[test]
fn a_denied_source_is_distinguished_from_a_denied_identity() {
    let mut objects = objects();
    static_identity(&mut objects, "a");
    let none = json!({"allowedNamespaces": null, "secretRef": "a"});
    put(&mut objects, "AWSClusterStaticIdentity/a", &none);
    put(
        &mut objects,
        &of("a"),
        &role("AWSClusterStaticIdentity/a", "a"),
    );
    let source = ResolutionError::SourceUsageUnauthorized {
        identity: identity("AWSClusterStaticIdentity/a"),
        namespace: TENANT.to_owned(),
    };
    assert_eq!(refused(&objects, &of("a")), source);
}

#[test]
fn a_namespace_is_permitted_only_while_it_has_the_label() {
    let mut objects = objects();
    let selector = json!({"selector": {"matchLabels": {"environment": "dev"}}});
    put(
        &mut objects,
        CONTROLLER,
        &json!({"allowedNamespaces": selector}),
    );
    assert_eq!(refused(&objects, CONTROLLER).reason(), "UsageUnauthorized");

    namespace(&mut objects, TENANT, &[("environment", "dev")], &[]);
    let plan = resolved(&objects, CONTROLLER).unwrap();
    assert_eq!(plan.chain.first().unwrap().permission, Permission::Selected);

    namespace(&mut objects, TENANT, &[], &[]);
    assert_eq!(refused(&objects, CONTROLLER).reason(), "UsageUnauthorized");
}

#[test]
fn an_invalid_selector_refuses_every_namespace() {
    let mut objects = objects();
    let selector = json!({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]});
    let invalid = json!({"allowedNamespaces": {"selector": selector}});
    put(&mut objects, CONTROLLER, &invalid);
    let error = refused(&objects, CONTROLLER);
    let invalid = InvalidSelector::ValuesMissing {
        operator: "NotIn".to_owned(),
        key: "a".to_owned(),
    };
    assert_eq!(
        error,
        ResolutionError::BadSelector {
            identity: identity(CONTROLLER),
            invalid
        }
    );
    assert_eq!(error.reason(), "BadSelector");
}

#[test]
fn a_source_loop_is_refused_with_its_path() {
    let mut objects = objects();
    put(&mut objects, &of("a"), &role(&of("b"), "a"));
    put(&mut objects, &of("b"), &role(&of("a"), "b"));
    let path = vec![identity(&of("a")), identity(&of("b")), identity(&of("a"))];
    let error = refused(&objects, &of("a"));
    assert_eq!(error, ResolutionError::ChainLoop(path));
    assert_eq!(error.reason(), "ChainLoop");
    let shown = error.to_string();
    assert!(
        shown.ends_with(&format!("{} -> {} -> {}", of("a"), of("b"), of("a"))),
        "{shown}"
    );

    put(&mut objects, &of("a"), &role(&of("a"), "a"));
    let path = vec![identity(&of("a")), identity(&of("a"))];
    assert_eq!(
        refused(&objects, &of("a")),
        ResolutionError::ChainLoop(path)
    );
}

#[test]
fn a_chain_has_at_most_five_identities() {
    let mut objects = objects();
    put(&mut objects, &of("1"), &role(CONTROLLER, "1"));
    for n in 2..=5 {
        put(
            &mut objects,
            &of(&n.to_string()),
            &role(&of(&(n - 1).to_string()), &n.to_string()),
        );
    }
    let roles = (1..=4).map(|n| arn(&n.to_string())).collect();
    assert_eq!(
        planned(&objects, &of("4")),
        ("controller".to_owned(), roles)
    );
    let error = refused(&objects, &of("5"));
    assert_eq!(error.reason(), "ChainTooDeep");
    let ResolutionError::ChainTooDeep(path) = error else {
        panic!("{error}");
    };
    assert_eq!(path.len(), 6);
}

#[test]
fn a_role_without_a_source_never_gets_the_controllers_credentials() {
    let mut objects = objects();
    let mut own = role(CONTROLLER, "a");
    own["sourceIdentityRef"] = json!(null);
    put(&mut objects, &of("a"), &own);
    let error = refused(&objects, &of("a"));
    assert_eq!(error, ResolutionError::MissingSource(identity(&of("a"))));
    assert_eq!(error.reason(), "MissingSource");
}

#[test]
fn a_source_of_an_unknown_kind_is_refused() {
    let mut objects = objects();
    let mut own = role(CONTROLLER, "a");
    own["sourceIdentityRef"] = json!({"kind": "AWSClusterOtherIdentity", "name": "a"});
    put(&mut objects, &of("a"), &own);
    let error = refused(&objects, &of("a"));
    assert_eq!(
        error,
        ResolutionError::UnsupportedKind("AWSClusterOtherIdentity".to_owned())
    );
    assert_eq!(error.reason(), "UnsupportedKind");
}

#[test]
fn a_session_from_temporary_credentials_is_shortened_with_a_warning() {
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    let mut long = role("AWSClusterStaticIdentity/keys", "a");
    long["durationSeconds"] = json!(7200);
    put(&mut objects, &of("a"), &long);
    let duration = |objects: &Objects| {
        let plan = resolved(objects, &of("a")).unwrap();
        (plan.roles.last().unwrap().duration.as_secs(), plan.warnings)
    };
    assert_eq!(duration(&objects), (7200, Vec::new()));

    let temporary = [
        ("AccessKeyID", "ASIA1"),
        ("SecretAccessKey", "s"),
        ("SessionToken", "t"),
    ];
    secret(&mut objects, "keys", &temporary);
    let warnings = vec![Warning::DurationShortened(identity(&of("a")))];
    assert_eq!(duration(&objects), (3600, warnings.clone()));

    for source in [CONTROLLER.to_owned(), of("jump")] {
        put(
            &mut objects,
            &of("jump"),
            &role("AWSClusterStaticIdentity/keys", "jump"),
        );
        let mut long = role(&source, "a");
        long["durationSeconds"] = json!(7200);
        put(&mut objects, &of("a"), &long);
        assert_eq!(duration(&objects), (3600, warnings.clone()), "{source}");
    }
}

#[test]
fn a_role_with_values_that_sts_refuses_is_invalid() {
    let mut objects = objects();
    let mut invalid = role(CONTROLLER, "a");
    invalid["roleARN"] = json!("nodes");
    put(&mut objects, &of("a"), &invalid);
    let error = refused(&objects, &of("a"));
    let invalid = InvalidRoleSpec::RoleArn(InvalidRoleArn);
    assert_eq!(
        error,
        ResolutionError::InvalidRole {
            identity: identity(&of("a")),
            invalid
        }
    );
    assert_eq!(error.reason(), "InvalidRoleARN");

    let mut invalid = role(CONTROLLER, "a");
    invalid["externalID"] = json!("a b");
    put(&mut objects, &of("a"), &invalid);
    assert_eq!(refused(&objects, &of("a")).reason(), "InvalidRole");
}

#[test]
fn a_role_must_belong_to_the_partition_of_the_region() {
    let mut objects = objects();
    let mut of_china = role(CONTROLLER, "a");
    of_china["roleARN"] = json!("arn:aws-cn:iam::111122223333:role/a");
    put(&mut objects, &of("a"), &of_china);
    let error = refused(&objects, &of("a"));
    let mismatch = ResolutionError::PartitionMismatch {
        role: "arn:aws-cn:iam::111122223333:role/a".to_owned(),
        partition: "aws",
        region: "eu-west-1".to_owned(),
    };
    assert_eq!(error, mismatch);
    assert_eq!(error.reason(), "PartitionMismatch");

    let in_region = |region| {
        let tenant = ClusterPlace {
            namespace: TENANT,
            region,
        };
        resolve(&objects, identity(&of("a")), tenant, &mut Vec::new()).map(drop)
    };
    assert_eq!(in_region(Some("cn-north-1")), Ok(()));
    assert_eq!(in_region(None), Ok(()));
}
