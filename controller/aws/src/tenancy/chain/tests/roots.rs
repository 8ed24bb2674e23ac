//! Tests of the first credentials in a chain: access keys in Secrets, and service account tokens.

use super::*;

#[test]
fn an_identity_secret_is_read_from_the_provider_namespace() {
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    assert_eq!(
        planned(&objects, "AWSClusterStaticIdentity/keys"),
        ("AKIA1".to_owned(), vec![])
    );

    objects.access_keys.clear();
    let error = refused(&objects, "AWSClusterStaticIdentity/keys");
    let not_found = ResolutionError::SecretNotFound {
        identity: identity("AWSClusterStaticIdentity/keys"),
        namespace: "capa-system".to_owned(),
        name: "keys".to_owned(),
    };
    assert_eq!(error, not_found);
    assert_eq!(error.reason(), "SecretNotFound");
}

#[test]
fn a_secret_is_not_looked_up_by_a_path() {
    for name in ["../keys", "tenant-a/keys", "", "Keys", "keys?a=b"] {
        let mut objects = objects();
        let spec = json!({"allowedNamespaces": {}, "secretRef": name});
        put(&mut objects, "AWSClusterStaticIdentity/a", &spec);
        secret(
            &mut objects,
            name,
            &[("AccessKeyID", "AKIA1"), ("SecretAccessKey", "s3cret")],
        );
        assert_eq!(
            refused(&objects, "AWSClusterStaticIdentity/a").reason(),
            "SecretNotFound",
            "{name}"
        );
    }
}

#[test]
fn a_secret_without_its_keys_is_malformed_and_shows_no_value() {
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    secret(
        &mut objects,
        "keys",
        &[("accessKeyID", "AKIA1"), ("SecretAccessKey", "s3cret")],
    );
    let error = refused(&objects, "AWSClusterStaticIdentity/keys");
    assert_eq!(error.reason(), "SecretMalformed");
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("AccessKeyID"), "{shown}");
    assert!(
        !shown.contains("AKIA1") && !shown.contains("s3cret"),
        "{shown}"
    );
}

#[test]
fn a_namespace_is_refused_before_the_secret_is_read() {
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    objects.access_keys.clear();
    let others = json!({"allowedNamespaces": {"list": ["tenant-b"]}, "secretRef": "keys"});
    put(&mut objects, "AWSClusterStaticIdentity/keys", &others);
    assert_eq!(
        refused(&objects, "AWSClusterStaticIdentity/keys").reason(),
        "UsageUnauthorized"
    );
}

#[test]
fn a_service_account_is_read_from_the_namespace_of_the_cluster() {
    let mut objects = objects();
    let spec = json!({"roleARN": arn("a")});
    put(&mut objects, "AWSServiceAccountIdentity/nodes", &spec);
    let plan = resolved(&objects, "AWSServiceAccountIdentity/nodes").unwrap();
    assert_eq!(plan.account(), Some("111122223333"));
    let Root::ServiceAccount(account) = &plan.root else {
        panic!("{plan:?}");
    };
    assert_eq!((&*account.namespace, &*account.name), (TENANT, "nodes"));
    assert_eq!(account.audiences, ["sts.amazonaws.com"]);
    assert_eq!(account.token_validity, Duration::from_hours(24));
    assert_eq!(account.role.arn.to_string(), arn("a"));

    let elsewhere = ClusterPlace {
        namespace: "tenant-b",
        region: None,
    };
    let error = resolve(
        &objects,
        identity("AWSServiceAccountIdentity/nodes"),
        elsewhere,
        &mut Vec::new(),
    );
    assert_eq!(error.unwrap_err().reason(), "IdentityNotFound");
}

#[test]
fn a_token_has_audiences_and_lasts_at_least_ten_minutes() {
    let mut objects = objects();
    let name = "AWSServiceAccountIdentity/nodes";
    let mut account = |spec| {
        put(&mut objects, name, &spec);
        let plan = resolved(&objects, name).map_err(|error| error.reason())?;
        let Root::ServiceAccount(account) = plan.root else {
            panic!("{:?}", plan.root);
        };
        Ok((account.audiences, account.token_validity.as_secs()))
    };
    let given = json!({"roleARN": arn("a"), "audiences": ["b", "a"], "expirationSeconds": 600});
    assert_eq!(
        account(given),
        Ok((vec!["b".to_owned(), "a".to_owned()], 600))
    );
    let short = json!({"roleARN": arn("a"), "expirationSeconds": 599});
    assert_eq!(account(short), Err("IdentityInvalid"));
    let empty = json!({"roleARN": arn("a"), "audiences": [""]});
    assert_eq!(account(empty), Err("IdentityInvalid"));
    assert_eq!(account(json!({"roleARN": "a"})), Err("InvalidRoleARN"));
}
