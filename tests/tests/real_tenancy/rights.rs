//! Tests of the objects that determine identities: a namespace's administrator must not have permissions for them.

use serde_json::json;

use crate::admin::Admin;
use crate::bed::{
    CONTROLLER_IDENTITY, ROLE_IDENTITY, SITE, STATIC_IDENTITY, Tenant, create_namespace, identity,
    identity_of, role, secret, static_identity,
};

#[test]
fn an_admin_of_a_namespace_cannot_create_change_or_delete_identities() {
    create_namespace(&SITE.management, "no-identities", &json!({}));
    let admin = Admin::of("no-identities");
    let role = json!({
        "roleARN": role("200000000101", "nodes"), "allowedNamespaces": {"list": ["no-identities"]},
        "sourceIdentityRef": {"kind": CONTROLLER_IDENTITY, "name": "default"},
    });
    let key = json!({"secretRef": "anothers", "allowedNamespaces": {}});
    let own = json!({"allowedNamespaces": {}});
    for (kind, plural, spec) in [
        (ROLE_IDENTITY, "awsclusterroleidentities", role),
        (STATIC_IDENTITY, "awsclusterstaticidentities", key),
        (CONTROLLER_IDENTITY, "awsclustercontrolleridentities", own),
    ] {
        let resource = format!("{plural}.infrastructure.cluster.x-k8s.io");
        for verb in ["create", "update", "patch", "delete", "get", "list"] {
            assert!(!admin.may_everywhere(verb, &resource), "{verb} {resource}");
        }
        admin.cannot_create(&identity_of(kind, "new", &spec));
        admin.cannot_apply(&identity_of(kind, "default", &spec));
        admin.cannot("delete", &[&resource, "default"]);
    }
}

#[test]
fn an_admin_of_a_namespace_cannot_write_the_controllers_kubeconfigs() {
    const NAME: &str = "no-kubeconfigs";
    create_namespace(&SITE.management, NAME, &json!({}));
    let admin = Admin::of(NAME);

    assert!(admin.may("create", "secrets", NAME));
    // The controller in this suite uses the namespace `default`.
    for verb in [
        "create", "update", "patch", "delete", "get", "list", "watch",
    ] {
        assert!(!admin.may(verb, "secrets", "default"), "{verb}");
    }
}

#[test]
fn an_admin_of_a_namespace_cannot_label_or_annotate_it() {
    const NAME: &str = "no-labels";
    static_identity(NAME, "200000000102");
    let tenant = Tenant::of_provider(NAME, STATIC_IDENTITY, NAME);
    let selector = json!({"selector": {"matchLabels": {"team": NAME}}});
    let selected = json!({"secretRef": NAME, "allowedNamespaces": selector});
    identity(STATIC_IDENTITY, NAME, &selected);
    tenant.resolved("False", "UsageUnauthorized");
    let admin = Admin::of(NAME);

    assert!(admin.may("get", "namespaces", NAME));
    for verb in ["update", "patch", "delete"] {
        assert!(!admin.may(verb, "namespaces", NAME), "{verb}");
    }
    for metadata in [
        json!({"name": NAME, "labels": {"team": NAME}}),
        json!({"name": NAME, "annotations": {"services.k8s.aws/team-id": "team-b"}}),
        json!({"name": NAME, "annotations": {"services.k8s.aws/owner-account-id": "200000000104"}}),
    ] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        admin.cannot_apply(&namespace);
    }
    tenant.is_still("False", "UsageUnauthorized");

    // The operator is allowed to write these objects.
    let label = json!({"metadata": {"labels": {"team": NAME}}});
    SITE.management
        .kubectl()
        .patch(&["namespaces", NAME], &label);
    tenant.resolved("True", "Resolved");
}

#[test]
fn a_namespace_admin_has_no_permissions_outside_its_namespace() {
    for namespace in ["one-admin", "others"] {
        create_namespace(&SITE.management, namespace, &json!({}));
    }
    let admin = Admin::of("one-admin");
    let account = "200000000103";
    for namespace in ["capa-system", "ack-system", "others"] {
        for resource in [
            "secrets",
            "configmaps",
            "serviceaccounts",
            "serviceaccounts/token",
            "rolebindings.rbac.authorization.k8s.io",
            "clusters.cluster.x-k8s.io",
            "machines.cluster.x-k8s.io",
            "awsclusters.infrastructure.cluster.x-k8s.io",
            "awsserviceaccountidentities.infrastructure.cluster.x-k8s.io",
            "kubeletauthentications.attestation.cluster.x-k8s.io",
            "nodeidentities.attestation.cluster.x-k8s.io",
        ] {
            for verb in ["get", "create", "patch", "delete"] {
                assert!(
                    !admin.may(verb, resource, namespace),
                    "{verb} {resource} in {namespace}"
                );
            }
        }
        admin.cannot_create(&secret(namespace, "planted", account));
        admin.cannot("get", &["secrets", "planted", "-n", namespace]);
        for map in ["ack-role-account-map", "ack-role-team-map"] {
            admin.cannot_apply(&json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": map, "namespace": namespace},
                "data": {account: role(account, "nodes")},
            }));
        }
    }
}
