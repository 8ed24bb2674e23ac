//! Tests of tenants whose nodes join, each in a separate account.

use kubelet_authenticator_test_support::moto::access_key;
use kubelet_authenticator_test_support::sts::Trust;
use kubelet_authenticator_tests::cloud::ACCOUNT;
use kubelet_authenticator_tests::fleet::condition_of;
use kubelet_authenticator_tests::management::InfraCluster;
use serde_json::json;

use crate::bed::{
    ACK_ACCOUNT, CONTROLLER_IDENTITY, EXTERNAL_ID, ROLE_IDENTITY, SITE, STATIC_IDENTITY, Tenant,
    apply, controller, create_namespace, identity, role, static_identity,
};

#[test]
fn nodes_of_a_tenant_with_an_access_key_join() {
    const THEIRS: &str = "200000000001";
    static_identity("by-key", THEIRS);
    let tenant = Tenant::of_provider("by-key", STATIC_IDENTITY, "by-key");
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
    let message = tenant.resolved("True", "Resolved");
    let expected = format!("EC2 is called as AWSClusterStaticIdentity/by-key, account {THEIRS}");
    assert_eq!(message, expected);
}

#[test]
fn nodes_of_a_tenant_with_a_chained_role_and_external_id_join() {
    const THEIRS: &str = "200000000002";
    let sts = SITE.cloud.sts();
    sts.role(&role(ACCOUNT, "jump"), Trust::of(&controller()));
    let trust = Trust::of(&role(ACCOUNT, "jump")).external_id("by-role-id");
    sts.role(&role(THEIRS, "nodes"), trust);
    let jump = json!({
        "roleARN": role(ACCOUNT, "jump"), "allowedNamespaces": {},
        "sourceIdentityRef": {"kind": CONTROLLER_IDENTITY, "name": "default"},
    });
    identity(ROLE_IDENTITY, "by-role-jump", &jump);
    let mut nodes = json!({
        "roleARN": role(THEIRS, "nodes"), "allowedNamespaces": {"list": ["by-role"]},
        "externalID": "another-tenants-id",
        "sourceIdentityRef": {"kind": ROLE_IDENTITY, "name": "by-role-jump"},
    });
    identity(ROLE_IDENTITY, "by-role", &nodes);
    let tenant = Tenant::of_provider("by-role", ROLE_IDENTITY, "by-role");
    // With another tenant's external ID, STS denies the call, and the node waits.
    let first = tenant.launch(THEIRS);
    let request = tenant.asks("m1", &first);
    let kubectl = SITE.management.kubectl();
    let ready = "AWSCredentialsReady";
    let found = tenant
        .authentication
        .wait_for(kubectl, ready, "False", "AssumeRoleDenied");
    let message = condition_of(&found, ready)["message"].to_string();
    assert!(message.contains(&role(THEIRS, "nodes")), "{message}");

    nodes["externalID"] = json!("by-role-id");
    identity(ROLE_IDENTITY, "by-role", &nodes);
    tenant.is_approved(&request);
    assert_eq!(tenant.account(), THEIRS);
}

#[test]
fn nodes_of_a_tenant_with_a_service_account_join() {
    const THEIRS: &str = "200000000003";
    const NAME: &str = "by-account";
    let trust = Trust::of_service_account(NAME, "nodes");
    SITE.cloud.sts().role(&role(THEIRS, "nodes"), trust);
    let cluster = SITE.management.cluster(NAME).namespace(NAME);
    let cluster = cluster
        .infrastructure(InfraCluster::Aws(SITE.network.clone()))
        .create();
    let metadata = json!({"name": "nodes", "namespace": NAME});
    apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}));
    apply(&json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "AWSServiceAccountIdentity",
        "metadata": metadata, "spec": {"roleARN": role(THEIRS, "nodes")},
    }));
    let kubectl = SITE.management.kubectl();
    kubectl.ok([
        "create",
        "rolebinding",
        "node-attestation-controller-tokens",
        "--clusterrole=node-attestation-controller-tokens",
        "--user=node-attestation-controller",
        "-n",
        NAME,
    ]);
    let spec = json!({"aws": {"serviceAccountIdentity": "nodes"}});
    let tenant = Tenant::authorized(cluster, spec);
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
}

#[test]
fn nodes_of_a_team_join_with_the_role_in_its_config_map() {
    const THEIRS: &str = "200000000004";
    const NAME: &str = "by-team";
    SITE.cloud
        .sts()
        .role(&role(THEIRS, "nodes"), Trust::of(&controller()));
    let annotations = json!({"services.k8s.aws/team-id": "team-a"});
    create_namespace(&SITE.management, NAME, &annotations);
    let cluster = SITE.management.cluster(NAME).namespace(NAME).create();
    create_namespace(&SITE.management, NAME, &annotations);
    let tenant = Tenant::authorized(cluster, json!({}));
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
}

#[test]
fn nodes_join_with_the_account_role_and_external_id_from_config_maps() {
    const NAME: &str = "by-account-id";
    let trust = Trust::of(&controller()).external_id(EXTERNAL_ID);
    SITE.cloud.sts().role(&role(ACK_ACCOUNT, "nodes"), trust);
    let tenant = Tenant::of_another_provider(NAME);
    let annotations = json!({"services.k8s.aws/owner-account-id": ACK_ACCOUNT});
    create_namespace(&SITE.management, NAME, &annotations);
    tenant.joins("m1", &tenant.launch(ACK_ACCOUNT));
    assert_eq!(tenant.account(), ACK_ACCOUNT);
}

#[test]
fn a_tenant_in_a_forbidden_namespace_waits_and_gets_a_condition() {
    const THEIRS: &str = "200000000005";
    static_identity("not-permitted", THEIRS);
    let others = json!({"secretRef": "not-permitted", "allowedNamespaces": {"list": ["others"]}});
    identity(STATIC_IDENTITY, "not-permitted", &others);
    let kind = STATIC_IDENTITY;
    let tenant = Tenant::of_provider("not-permitted", kind, "not-permitted");
    let message = tenant.resolved("False", "UsageUnauthorized");
    assert!(
        message.contains("AWSClusterStaticIdentity/not-permitted"),
        "{message}"
    );
    assert!(message.contains("namespace not-permitted"), "{message}");

    // After its namespace gets the label that the identity selects, the tenant can join, without a restart.
    let selector = json!({"matchLabels": {"team": "permitted"}});
    let selected =
        json!({"secretRef": "not-permitted", "allowedNamespaces": {"selector": selector}});
    identity(kind, "not-permitted", &selected);
    let request = tenant.asks("m1", &tenant.launch(THEIRS));
    tenant.resolved("False", "UsageUnauthorized");
    tenant.waits(&request, "does not permit namespace not-permitted");
    let label = json!({"metadata": {"labels": {"team": "permitted"}}});
    let kubectl = SITE.management.kubectl();
    kubectl.patch(&["namespaces", "not-permitted"], &label);
    tenant.is_approved(&request);
}

#[test]
fn an_instance_in_another_account_cannot_join_the_cluster() {
    const THEIRS: &str = "200000000006";
    const OTHERS: &str = "200000000007";
    static_identity("own-account", THEIRS);
    let tenant = Tenant::of_provider("own-account", STATIC_IDENTITY, "own-account");
    // The attacker can write all objects in its namespace, including a Machine for the other tenant's instance.
    let stolen = tenant.launch(OTHERS);
    assert_eq!(tenant.is_denied("m1", &stolen), "AccountNotAllowed");
    tenant.joins("m2", &tenant.launch(THEIRS));
}

#[test]
fn a_rotated_secret_is_used_but_a_changed_account_is_refused() {
    const THEIRS: &str = "200000000008";
    const ANOTHER: &str = "200000000009";
    static_identity("rotated", THEIRS);
    let tenant = Tenant::of_provider("rotated", STATIC_IDENTITY, "rotated");
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);

    SITE.cloud.learn(ANOTHER, "rotated");
    let (id, secret) = access_key(ANOTHER);
    let data = json!({"stringData": {"AccessKeyID": id, "SecretAccessKey": secret}});
    let kubectl = SITE.management.kubectl();
    kubectl.patch(&["secrets", "rotated", "-n", "capa-system"], &data);
    let second = tenant.launch(ANOTHER);
    let request = tenant.asks("m2", &second);

    let message = tenant.resolved("False", "AccountMismatch");
    assert!(
        message.contains(THEIRS) && message.contains(ANOTHER),
        "{message}"
    );
    tenant.waits(&request, &format!("first belonged to account {THEIRS},"));

    // An operator accepts the new account.
    let patch =
        json!({"metadata": {"annotations": {"attestation.cluster.x-k8s.io/aws-account": null}}});
    kubectl.patch(
        &["kubeletauthentications", "rotated", "-n", "rotated"],
        &patch,
    );
    tenant.is_approved(&request);
}

#[test]
fn nodes_join_with_the_identity_of_a_managed_control_plane() {
    const NAME: &str = "managed";
    const THEIRS: &str = "200000000010";
    static_identity(NAME, THEIRS);
    let tenant = Tenant::of_another_provider(NAME);
    apply(&json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "AWSManagedControlPlane",
        "metadata": {"name": NAME, "namespace": NAME},
        "spec": {"identityRef": {"kind": STATIC_IDENTITY, "name": NAME}},
    }));
    tenant.resolved("False", "IdentityNotNamed");
    let reference = json!({
        "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "AWSManagedControlPlane", "name": NAME,
    });
    let patch = json!({"spec": {"controlPlaneRef": reference}});
    let target = ["clusters.cluster.x-k8s.io", NAME, "-n", NAME];
    SITE.management.kubectl().patch(&target, &patch);
    // EKS nodes cannot join, even though this cluster has a CA key, and instances with the cluster's name in their
    // tags.
    let message = tenant.condition("ControlPlaneSupported", "False", "ManagedControlPlane");
    assert!(
        message.starts_with("AWSManagedControlPlane: EKS "),
        "{message}"
    );
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
}
