//! Tests of namespace administrators who attack a role with a service account.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::Trust;
use kubelet_authenticator_tests::page::commands;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::bed::{PATIENCE, SITE, Tenant, apply, create_namespace, outcomes_with, role};

pub fn service_account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
}

pub fn role_of_service_account(name: &str, role: &str) -> Value {
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
        "kind": "AWSServiceAccountIdentity",
        "metadata": {"name": name}, "spec": {"roleARN": role},
    })
}

/// Allows the controller to create tokens in the namespace. The administrator of the namespace can grant this
/// permission.
pub fn grant_tokens(admin: &Admin, namespace: &str) {
    // On the page, the command contains the controller's service account. The controller in these tests is a user.
    let command = commands("tenancy.md", '$').remove(0).replace("\\\n", " ");
    let command = command.replace("tenant-a", namespace);
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    assert!(!pod_may_create_tokens(namespace));
    admin.ok(&words);
    let may = poll(PATIENCE, || pod_may_create_tokens(namespace).then_some(()));
    assert!(may.is_some(), "the binding of the page is not sufficient");
    admin.ok(&[
        "create",
        "rolebinding",
        "tokens",
        "--clusterrole=node-attestation-controller-tokens",
        "--user=node-attestation-controller",
        "-n",
        namespace,
    ]);
}

/// Whether the service account of the controller's Pod can create service account tokens. This is the only call that
/// requires the role.
fn pod_may_create_tokens(namespace: &str) -> bool {
    const POD: &str =
        "--as=system:serviceaccount:node-attestation-system:node-attestation-controller";
    // `serviceaccounts/token` would mean the service account with the name `token`.
    let words = [
        "auth",
        "can-i",
        "create",
        "serviceaccounts",
        "--subresource=token",
        "-n",
        namespace,
        POD,
    ];
    let output = SITE.management.kubectl().run(&words[..]);
    match String::from_utf8_lossy(&output.stdout).trim() {
        "yes" => true,
        "no" => false,
        other => panic!("kubectl {words:?}: {other}: {output:?}"),
    }
}

/// Makes the KubeletAuthentication refer to this identity.
pub fn name_identity(admin: &Admin, cluster: &str, identity: &str) {
    let patch = json!({"spec": {"aws": {"serviceAccountIdentity": identity}}});
    admin.patch("kubeletauthentications", cluster, &patch);
}

#[test]
fn a_service_account_of_a_tenant_cannot_assume_a_foreign_role() {
    const NAME: &str = "own-tokens";
    const THEIRS: &str = "200000000120";
    const ANOTHERS: &str = "200000000121";
    let sts = SITE.cloud.sts();
    let trust = Trust::of_service_account("anothers-tokens", "nodes");
    sts.role(&role(ANOTHERS, "nodes"), trust);
    let trust = Trust::of_service_account(NAME, "nodes");
    sts.role(&role(THEIRS, "nodes"), trust);
    let tenant = Tenant::with_access_key(NAME, THEIRS);
    let admin = Admin::of(NAME);
    assert!(!admin.may("create", "serviceaccounts/token", "anothers-tokens"));

    grant_tokens(&admin, NAME);
    admin.apply(service_account("nodes"));
    admin.apply(role_of_service_account("nodes", &role(ANOTHERS, "nodes")));
    name_identity(&admin, NAME, "nodes");

    tenant.resolved("True", "Resolved");
    let request = tenant.asks("m1", &tenant.launch(ANOTHERS));
    let message = tenant.condition("AWSCredentialsReady", "False", "AssumeRoleDenied");
    assert!(message.contains(&role(ANOTHERS, "nodes")), "{message}");
    tenant.waits(&request, &role(ANOTHERS, "nodes"));
    let outcomes = outcomes_with(ANOTHERS);
    assert!(!outcomes.is_empty());
    assert!(
        outcomes.iter().all(|outcome| outcome == "AccessDenied"),
        "{outcomes:?}"
    );

    // The same service account gets a session for its own role.
    admin.apply(role_of_service_account("nodes", &role(THEIRS, "nodes")));
    tenant.joins("m2", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
}

#[test]
fn a_service_account_identity_in_another_namespace_is_not_found() {
    const NAME: &str = "no-tokens";
    const ANOTHERS: &str = "200000000123";
    let trust = Trust::of_service_account("anothers-nodes", "nodes");
    SITE.cloud.sts().role(&role(ANOTHERS, "nodes"), trust);
    create_namespace(&SITE.management, "anothers-nodes", &json!({}));
    for mut object in [
        service_account("nodes"),
        role_of_service_account("nodes", &role(ANOTHERS, "nodes")),
    ] {
        object["metadata"]["namespace"] = json!("anothers-nodes");
        apply(&object);
    }
    let tenant = Tenant::with_access_key(NAME, "200000000122");
    let admin = Admin::of(NAME);
    grant_tokens(&admin, NAME);

    for name in ["nodes", "anothers-nodes/nodes"] {
        name_identity(&admin, NAME, name);
        let expected = format!("AWSServiceAccountIdentity/{name}");
        let message = tenant.resolved("False", "IdentityNotFound");
        assert!(message.contains("AWSServiceAccountIdentity"), "{message}");
        tenant.is_still("False", "IdentityNotFound");
        let message = tenant.resolved("False", "IdentityNotFound");
        assert!(message.contains(&expected), "{message}");
    }
    let request = tenant.asks("m1", &tenant.launch(ANOTHERS));
    tenant.waits(&request, "AWSServiceAccountIdentity/anothers-nodes/nodes");
    assert_eq!(outcomes_with(ANOTHERS), Vec::<String>::new());
}
