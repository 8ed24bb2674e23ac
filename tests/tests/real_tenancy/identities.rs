//! Tests of namespace administrators who attack the identity of another tenant or of the controller.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::Trust;
use kubelet_authenticator_tests::cloud::ACCOUNT;
use serde_json::json;

use crate::admin::Admin;
use crate::bed::{
    CONTROLLER_IDENTITY, PATIENCE, ROLE_IDENTITY, SITE, STATIC_IDENTITY, Tenant, apply, controller,
    create_namespace, identity, outcomes_with, role, secret,
};

#[test]
fn a_tenant_that_references_a_foreign_identity_is_not_permitted() {
    const NAME: &str = "names-anothers";
    const THEIRS: &str = "200000000110";
    const ANOTHERS: &str = "200000000111";
    let sts = SITE.cloud.sts();
    sts.role(&role(ANOTHERS, "nodes"), Trust::of(&controller()));
    let spec = json!({
        "roleARN": role(ANOTHERS, "nodes"), "allowedNamespaces": {"list": ["another"]},
        "sourceIdentityRef": {"kind": CONTROLLER_IDENTITY, "name": "default"},
    });
    identity(ROLE_IDENTITY, "anothers-role", &spec);
    let tenant = Tenant::with_access_key(NAME, THEIRS);
    tenant.resolved("True", "Resolved");
    let admin = Admin::of(NAME);

    let named = json!({"kind": ROLE_IDENTITY, "name": "anothers-role"});
    admin.patch(
        "awsclusters",
        NAME,
        &json!({"spec": {"identityRef": named}}),
    );

    let message = tenant.resolved("False", "UsageUnauthorized");
    let expected = format!("{ROLE_IDENTITY}/anothers-role");
    assert!(
        message.contains(&expected) && message.contains(NAME),
        "{message}"
    );
    let request = tenant.asks("m1", &tenant.launch(ANOTHERS));
    tenant.is_still("False", "UsageUnauthorized");
    tenant.waits(&request, &expected);
    assert_eq!(outcomes_with(ANOTHERS), Vec::<String>::new());
}

#[test]
fn a_tenant_without_an_identity_gets_no_controller_credentials() {
    const NAME: &str = "names-none";
    let tenant = Tenant::with_access_key(NAME, "200000000112");
    tenant.resolved("True", "Resolved");
    let admin = Admin::of(NAME);
    let refused = || {
        let message = tenant.resolved("False", "UsageUnauthorized");
        let expected = format!("{CONTROLLER_IDENTITY}/default");
        assert!(message.contains(&expected), "{message}");
    };

    let none = json!({"spec": {"identityRef": null}});
    admin.patch("awsclusters", NAME, &none);
    refused();
    let named = |name: &str| {
        let reference = json!({"kind": CONTROLLER_IDENTITY, "name": name});
        json!({"spec": {"identityRef": reference}})
    };
    admin.patch("awsclusters", NAME, &named("another"));
    tenant.resolved("False", "NotSingleton");
    admin.patch("awsclusters", NAME, &named("default"));
    refused();
    // The controller does not query EC2 about an instance in its own account.
    let request = tenant.asks("m1", &tenant.launch(ACCOUNT));
    tenant.is_still("False", "UsageUnauthorized");
    tenant.waits(&request, &format!("{CONTROLLER_IDENTITY}/default"));
}

#[test]
fn a_cluster_without_an_awscluster_gets_no_controller_credentials() {
    const NAME: &str = "no-awscluster";
    let tenant = Tenant::with_access_key(NAME, "200000000113");
    tenant.resolved("True", "Resolved");
    let admin = Admin::of(NAME);

    let reference = json!({"kind": "GenericCluster", "name": NAME});
    let patch = json!({"spec": {"infrastructureRef": reference}});
    admin.patch("clusters.cluster.x-k8s.io", NAME, &patch);

    tenant.resolved("False", "IdentityNotNamed");
}

#[test]
fn a_secret_in_the_tenants_namespace_is_not_read_for_an_identity() {
    const NAME: &str = "own-secret";
    const THEIRS: &str = "200000000114";
    const PLANTED: &str = "200000000115";
    let spec = json!({"secretRef": NAME, "allowedNamespaces": {}});
    identity(STATIC_IDENTITY, NAME, &spec);
    let tenant = Tenant::of_provider(NAME, STATIC_IDENTITY, NAME);
    let admin = Admin::of(NAME);

    admin.apply(secret(NAME, NAME, PLANTED));
    let message = tenant.resolved("False", "SecretNotFound");
    assert!(message.contains("capa-system"), "{message}");
    tenant.is_still("False", "SecretNotFound");

    apply(&secret("capa-system", NAME, THEIRS));
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
    let planted = tenant.launch(PLANTED);
    assert_eq!(tenant.is_denied("m2", &planted), "AccountNotAllowed");
}

#[test]
fn config_maps_in_the_tenants_namespace_do_not_provide_a_role() {
    const NAME: &str = "own-maps";
    const ANOTHERS: &str = "200000000116";
    let sts = SITE.cloud.sts();
    sts.role(&role(ANOTHERS, "nodes"), Trust::of(&controller()));
    let tenant = Tenant::of_another_provider(NAME);
    let admin = Admin::of(NAME);

    for map in ["ack-role-account-map", "ack-role-team-map"] {
        admin.apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": map},
            "data": {ANOTHERS: role(ANOTHERS, "nodes"), "own-team": role(ANOTHERS, "nodes")},
        }));
    }
    for (annotation, key, map) in [
        ("owner-account-id", ANOTHERS, "ack-role-account-map"),
        ("team-id", "own-team", "ack-role-team-map"),
    ] {
        let annotation = format!("services.k8s.aws/{annotation}");
        create_namespace(&SITE.management, NAME, &json!({annotation: key}));
        let named = poll(PATIENCE, || {
            let message = tenant.resolved("False", "CARMKeyNotFound");
            (message.contains(map) && message.contains(key)).then_some(())
        });
        assert!(named.is_some(), "{map} is not looked up");
    }
    let request = tenant.asks("m1", &tenant.launch(ANOTHERS));
    tenant.is_still("False", "CARMKeyNotFound");
    tenant.waits(&request, "has no key \"own-team\"");
    assert_eq!(outcomes_with(ANOTHERS), Vec::<String>::new());
}

#[test]
fn annotations_of_the_tenants_objects_do_not_provide_a_role() {
    const NAME: &str = "own-objects";
    /// The account of `team-b`.
    const ANOTHERS: &str = "200000000104";
    let sts = SITE.cloud.sts();
    sts.role(&role(ANOTHERS, "nodes"), Trust::of(&controller()));
    let tenant = Tenant::of_another_provider(NAME);
    let admin = Admin::of(NAME);

    let annotations = json!({
        "services.k8s.aws/team-id": "team-b",
        "services.k8s.aws/owner-account-id": ANOTHERS,
    });
    for resource in [
        "clusters.cluster.x-k8s.io",
        "genericclusters.infrastructure.cluster.x-k8s.io",
        "kubeletauthentications.attestation.cluster.x-k8s.io",
    ] {
        let patch = json!({"metadata": {"annotations": annotations, "labels": {"team": "team-b"}}});
        admin.patch(resource, NAME, &patch);
    }
    let request = tenant.asks("m1", &tenant.launch(ANOTHERS));
    tenant.is_still("False", "IdentityNotNamed");
    tenant.waits(
        &request,
        "no object specifies an AWS identity for the cluster",
    );
    assert_eq!(outcomes_with(ANOTHERS), Vec::<String>::new());

    // Only the same annotation on the Namespace has an effect, because only the operator can write to the Namespace.
    let annotations = json!({"services.k8s.aws/team-id": "team-b"});
    create_namespace(&SITE.management, NAME, &annotations);
    tenant.is_approved(&request);
    assert_eq!(tenant.account(), ANOTHERS);
}
