//! Tests of namespace administrators who attack another tenant's objects and instances.

use kubelet_authenticator_tests::fleet::Authentication;
use kubelet_authenticator_tests::management::{InfraCluster, owned};
use serde_json::json;

use crate::admin::Admin;
use crate::bed::{SITE, STATIC_IDENTITY, Tenant, identity, static_identity};

const PIN: &str = "attestation.cluster.x-k8s.io/aws-account";

/// Writes the account that the cluster has recorded, or removes it.
fn pin(admin: &Admin, cluster: &str, account: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {PIN: account}}});
    admin.patch("kubeletauthentications", cluster, &patch);
}

#[test]
fn a_forged_account_affects_only_the_cluster_of_its_tenant() {
    const NAME: &str = "forged";
    const THEIRS: &str = "200000000130";
    const ANOTHERS: &str = "200000000131";
    let tenant = Tenant::with_access_key(NAME, THEIRS);
    tenant.resolved("True", "Resolved");
    let admin = Admin::of(NAME);

    pin(&admin, NAME, Some(ANOTHERS));
    let message = tenant.resolved("False", "AccountMismatch");
    assert!(message.contains(ANOTHERS), "{message}");
    let own = tenant.asks("m1", &tenant.launch(THEIRS));
    tenant.waits(&own, ANOTHERS);

    pin(&admin, NAME, None);
    tenant.is_approved(&own);
    assert_eq!(tenant.account(), THEIRS);
    let anothers = tenant.launch(ANOTHERS);
    assert_eq!(tenant.is_denied("m2", &anothers), "AccountNotAllowed");
}

#[test]
fn a_removed_account_is_replaced_only_by_a_permitted_identity() {
    const NAME: &str = "repinned";
    const FIRST: &str = "200000000132";
    const SECOND: &str = "200000000133";
    static_identity("repinned-second", SECOND);
    let tenant = Tenant::with_access_key(NAME, FIRST);
    tenant.joins("m1", &tenant.launch(FIRST));
    assert_eq!(tenant.account(), FIRST);
    let admin = Admin::of(NAME);

    let second = json!({"kind": STATIC_IDENTITY, "name": "repinned-second"});
    let patch = json!({"spec": {"identityRef": second}});
    admin.patch("awsclusters", NAME, &patch);
    let request = tenant.asks("m2", &tenant.launch(SECOND));
    tenant.resolved("False", "AccountMismatch");
    tenant.waits(&request, SECOND);

    pin(&admin, NAME, None);
    tenant.is_approved(&request);
    assert_eq!(tenant.account(), SECOND);

    let others = json!({"secretRef": "repinned-second", "allowedNamespaces": {"list": ["others"]}});
    identity(STATIC_IDENTITY, "repinned-third", &others);
    let third = json!({"kind": STATIC_IDENTITY, "name": "repinned-third"});
    let patch = json!({"spec": {"identityRef": third}});
    admin.patch("awsclusters", NAME, &patch);
    pin(&admin, NAME, None);
    tenant.resolved("False", "UsageUnauthorized");
}

#[test]
fn references_to_objects_of_another_tenant_are_not_resolved() {
    const NAME: &str = "refers";
    const ANOTHERS: &str = "anothers-cluster";
    let victim = SITE.management.cluster(ANOTHERS).namespace(ANOTHERS);
    let victim = victim.infrastructure(InfraCluster::Aws(SITE.network.clone()));
    let _victim = victim.create();
    let tenant = Tenant::with_access_key(NAME, "200000000134");
    tenant.resolved("True", "Resolved");
    let admin = Admin::of(NAME);
    assert!(!admin.may("get", "awsclusters", ANOTHERS));

    for namespace in [json!(null), json!(ANOTHERS)] {
        let reference = json!({"kind": "AWSCluster", "name": ANOTHERS, "namespace": namespace});
        let patch = json!({"spec": {"infrastructureRef": reference}});
        admin.patch("clusters.cluster.x-k8s.io", NAME, &patch);
        tenant.resolved("False", "InfrastructureNotFound");
        tenant.is_still("False", "InfrastructureNotFound");
    }
    admin.apply(json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
        "metadata": {"name": ANOTHERS},
        "spec": {"clusterName": ANOTHERS, "authorizedAttestors": ["aws"]},
    }));
    let stolen = Authentication {
        namespace: NAME.to_owned(),
        name: ANOTHERS.to_owned(),
    };
    let kubectl = SITE.management.kubectl();
    stolen.wait_for(kubectl, "Ready", "False", "ClusterNotFound");
}

#[test]
fn clusters_with_the_same_name_in_two_namespaces_use_two_accounts() {
    const ACCOUNTS: [(&str, &str); 2] = [("same-a", "200000000135"), ("same-b", "200000000136")];
    let tenants = ACCOUNTS.map(|(namespace, account)| {
        static_identity(namespace, account);
        let spec = json!({"secretRef": namespace, "allowedNamespaces": {"list": [namespace]}});
        identity(STATIC_IDENTITY, namespace, &spec);
        Tenant::of_provider_in(namespace, "same", STATIC_IDENTITY, namespace)
    });
    let [(_, first), (_, second)] = ACCOUNTS;
    let [one, other] = &tenants;
    for (tenant, own, anothers) in [(one, first, second), (other, second, first)] {
        tenant.joins("m1", &tenant.launch(own));
        assert_eq!(tenant.account(), own);
        let stolen = tenant.launch(anothers);
        assert_eq!(tenant.is_denied("m2", &stolen), "AccountNotAllowed");
    }
}

#[test]
fn a_tenant_setting_never_admits_an_instance_of_another_tenant() {
    const NAME: &str = "writes-all";
    const ANOTHERS: &str = "200000000138";
    let victim = Tenant::with_access_key("anothers-instances", ANOTHERS);
    let tenant = Tenant::with_access_key(NAME, "200000000137");
    let admin = Admin::of(NAME);
    let stolen = victim.launch(ANOTHERS);

    assert!(admin.may("create", "machines.cluster.x-k8s.io", NAME));
    pin(&admin, NAME, None);
    let tags = json!({owned(victim.cluster.name()): "owned"});
    let aws = json!({"accounts": [ANOTHERS], "requiredTags": tags, "rootVolumeCheck": false});
    let spec = json!({"spec": {"aws": aws}});
    admin.patch("kubeletauthentications", NAME, &spec);
    tenant.is_still("True", "Resolved");
    // The request uses the tenant's own token, and the tenant's Machine has the instance's provider ID.
    assert_eq!(tenant.is_denied("m1", &stolen), "AccountNotAllowed");
    victim.joins("m1", &stolen);
}

#[test]
fn tenants_that_share_an_account_cannot_join_foreign_instances() {
    const SHARED: &str = "200000000150";
    static_identity("shared", SHARED);
    let [victim, tenant] =
        ["shares-a", "shares-b"].map(|name| Tenant::of_provider(name, STATIC_IDENTITY, "shared"));
    let admin = Admin::of("shares-b");
    let stolen = victim.launch(SHARED);

    assert_eq!(tenant.is_denied("m1", &stolen), "TagMismatch");
    let tags = json!({owned(victim.cluster.name()): "owned"});
    let spec = json!({"spec": {"aws": {"requiredTags": tags}}});
    admin.patch("kubeletauthentications", "shares-b", &spec);
    tenant.is_still("True", "Resolved");
    let another = victim.launch(SHARED);
    assert_eq!(tenant.is_denied("m2", &another), "TagMismatch");
    victim.joins("m1", &stolen);
}

#[test]
fn evidence_for_another_cluster_with_the_same_name_is_denied() {
    const SHARED: &str = "200000000151";
    static_identity("twins", SHARED);
    let [victim, tenant] = ["twin-a", "twin-b"]
        .map(|namespace| Tenant::of_provider_in(namespace, "twin", STATIC_IDENTITY, "twins"));
    // The instance's tag matches both clusters, and the Machine is in the attacker's cluster.
    let stolen = victim.launch(SHARED);

    let copied = tenant.files("m1", &stolen, &victim.audience());

    assert_eq!(tenant.is_refused(&copied), "AudienceMismatch");
    victim.joins("m1", &stolen);
}
