use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::tenancy::chain::{ClusterPlace, resolve};
use crate::tenancy::objects::Objects;
use crate::tenancy::testing::{TENANT, identity, objects, put, role, secret, static_identity};

const CONTROLLER: &str = "AWSClusterControllerIdentity/default";
const ROLE: &str = "AWSClusterRoleIdentity/a";

fn digests_of(objects: &Objects, name: &str, key: &DigestKey) -> Vec<CredentialsKey> {
    let tenant = ClusterPlace {
        namespace: TENANT,
        region: None,
    };
    let plan = resolve(objects, identity(name), tenant, &mut Vec::new()).unwrap();
    plan.digests(key, "eu-west-1")
}

fn key() -> DigestKey {
    DigestKey::new(&[7; 32])
}

/// The digests for a role identity after this change.
fn digests(change: impl FnOnce(&mut Value)) -> Vec<CredentialsKey> {
    let mut objects = objects();
    let mut spec = role(CONTROLLER, "a");
    change(&mut spec);
    put(&mut objects, ROLE, &spec);
    digests_of(&objects, ROLE, &key())
}

#[test]
fn every_sts_parameter_changes_the_plan_digest() {
    let changes: [fn(&mut Value); 8] = [
        |_| {},
        |spec| spec["roleARN"] = json!("arn:aws:iam::111122223333:role/b"),
        |spec| spec["sessionName"] = json!("other"),
        |spec| spec["durationSeconds"] = json!(900),
        |spec| spec["externalID"] = json!("one"),
        |spec| spec["externalID"] = json!("two"),
        |spec| spec["inlinePolicy"] = json!("{}"),
        |spec| spec["policyARNs"] = json!(["arn:aws:iam::aws:policy/a"]),
    ];
    let last = changes.map(|change| *digests(change).last().unwrap());
    assert_eq!(BTreeSet::from(last).len(), last.len());
}

#[test]
fn the_sts_region_is_part_of_the_role_digest() {
    let mut objects = objects();
    put(&mut objects, ROLE, &role(CONTROLLER, "a"));
    let tenant = ClusterPlace {
        namespace: TENANT,
        region: None,
    };
    let plan = resolve(&objects, identity(ROLE), tenant, &mut Vec::new()).unwrap();
    let [here, there] = ["eu-west-1", "us-east-1"].map(|region| plan.digests(&key(), region));
    assert_eq!(here.first(), there.first());
    assert_ne!(here.last(), there.last());
}

#[test]
fn the_order_of_session_policies_does_not_change_the_digest() {
    let policies = |names: [&str; 2]| {
        let arns = names.map(|name| format!("arn:aws:iam::aws:policy/{name}"));
        digests(|spec| spec["policyARNs"] = json!(arns))
    };
    assert_eq!(policies(["a", "b"]), policies(["b", "a"]));
    assert_ne!(policies(["a", "b"]), policies(["a", "c"]));
}

#[test]
fn the_digest_of_a_plan_is_deterministic() {
    let one = digests(|_| {});
    for _ in 0..1000 {
        assert_eq!(digests(|_| {}), one);
    }
}

#[test]
fn allowed_namespaces_do_not_change_the_plan_digest() {
    let listed = digests(|spec| spec["allowedNamespaces"] = json!({"list": [TENANT]}));
    assert_eq!(listed, digests(|_| {}));
}

#[test]
fn plans_with_a_common_source_share_its_digest() {
    let mut objects = objects();
    put(
        &mut objects,
        "AWSClusterRoleIdentity/jump",
        &role(CONTROLLER, "jump"),
    );
    for name in ["a", "b"] {
        let spec = role("AWSClusterRoleIdentity/jump", name);
        put(
            &mut objects,
            &format!("AWSClusterRoleIdentity/{name}"),
            &spec,
        );
    }
    let [a, b] = [ROLE, "AWSClusterRoleIdentity/b"].map(|name| digests_of(&objects, name, &key()));
    assert_eq!(a.len(), 3);
    assert_eq!(a[..2], b[..2]);
    assert_ne!(a[2], b[2]);
}

#[test]
fn the_same_role_over_two_sources_has_two_digests() {
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    put(
        &mut objects,
        ROLE,
        &role("AWSClusterStaticIdentity/keys", "a"),
    );
    let over_keys = digests_of(&objects, ROLE, &key());
    assert_ne!(over_keys.last(), digests(|_| {}).last());
}

#[test]
fn access_key_digests_differ_between_processes_and_rotations() {
    const KEYS: &str = "AWSClusterStaticIdentity/keys";
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    let one = digests_of(&objects, KEYS, &key());
    assert_eq!(digests_of(&objects, KEYS, &key()), one);
    assert_ne!(digests_of(&objects, KEYS, &DigestKey::new(&[8; 32])), one);

    let mut seen = vec![one];
    for data in [
        &[("AccessKeyID", "AKIA1"), ("SecretAccessKey", "new")][..],
        &[("AccessKeyID", "AKIA2"), ("SecretAccessKey", "new")],
        &[
            ("AccessKeyID", "AKIA2"),
            ("SecretAccessKey", "new"),
            ("SessionToken", "t"),
        ],
        // The concatenated bytes are the same, but the boundary between the fields is different.
        &[("AccessKeyID", "AKIA"), ("SecretAccessKey", "1s3cret")],
    ] {
        secret(&mut objects, "keys", data);
        let next = digests_of(&objects, KEYS, &key());
        assert!(!seen.contains(&next), "{data:?}");
        seen.push(next);
    }
    static_identity(&mut objects, "keys");
    assert_eq!(digests_of(&objects, KEYS, &key()), seen[0]);
}

#[test]
fn neither_a_plan_nor_a_digest_shows_a_secret() {
    let mut objects = objects();
    static_identity(&mut objects, "keys");
    put(
        &mut objects,
        ROLE,
        &role("AWSClusterStaticIdentity/keys", "a"),
    );
    let tenant = ClusterPlace {
        namespace: TENANT,
        region: None,
    };
    let plan = resolve(&objects, identity(ROLE), tenant, &mut Vec::new()).unwrap();
    let shown = format!(
        "{plan:?} {:?} {:?}",
        plan.digests(&key(), "eu-west-1"),
        key()
    );
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn service_accounts_in_different_namespaces_have_different_digests() {
    let account = |namespace: &str| {
        let root = Root::ServiceAccount(Box::new(ServiceAccount {
            namespace: namespace.to_owned(),
            name: "nodes".to_owned(),
            audiences: vec!["sts.amazonaws.com".to_owned()],
            token_validity: Duration::from_hours(24),
            role: Role::new(
                &crate::tenancy::RoleSpec {
                    role_arn: "arn:aws:iam::111122223333:role/a".to_owned(),
                    ..Default::default()
                },
                "nodes",
            )
            .unwrap(),
        }));
        Plan {
            root,
            ..Plan::controller()
        }
        .digests(&key(), "eu-west-1")
    };
    assert_eq!(account("a"), account("a"));
    assert_ne!(account("a"), account("b"));
}
