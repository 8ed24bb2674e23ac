//! Tests of credentials that the controller checks with STS before the first node joins, and of Clusters with the same
//! name in one account.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::Trust;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::bed::{
    PATIENCE, ROLE_IDENTITY, SITE, STATIC_IDENTITY, Tenant, identity, outcomes_with, role,
    static_identity,
};
use crate::service_accounts::{
    grant_tokens, name_identity, role_of_service_account, service_account,
};

const READY: &str = "AWSCredentialsReady";

#[test]
fn a_role_is_assumed_once_before_the_first_node() {
    const NAME: &str = "tried";
    const THEIRS: &str = "200000000160";
    let arn = role(THEIRS, "nodes");
    let trust = Trust::of_service_account(NAME, "nodes");
    SITE.cloud.sts().role(&arn, trust);
    let tenant = Tenant::with_access_key(NAME, THEIRS);
    let admin = Admin::of(NAME);
    grant_tokens(&admin, NAME);
    admin.apply(service_account("nodes"));
    admin.apply(role_of_service_account("nodes", &arn));
    name_identity(&admin, NAME, "nodes");
    tenant.resolved("True", "Resolved");

    let accepted = poll(PATIENCE, || {
        let outcomes = outcomes_with(THEIRS);
        (!outcomes.is_empty()).then_some(outcomes)
    });
    assert_eq!(accepted.unwrap(), ["OK"]);
    let message = tenant.condition(READY, "True", "CredentialsAccepted");
    assert!(
        message.starts_with("STS accepted the credentials; EC2 has not been called yet"),
        "{message}"
    );

    // For the first node, the controller uses the session from this test of the credentials.
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(outcomes_with(THEIRS), ["OK"]);
}

#[test]
fn a_role_that_sts_refuses_is_reported_before_the_first_node() {
    const NAME: &str = "tried-refused";
    const THEIRS: &str = "200000000161";
    let arn = role(THEIRS, "nodes");
    let trust = Trust::of_service_account("anothers-account", "nodes");
    SITE.cloud.sts().role(&arn, trust);
    let tenant = Tenant::with_access_key(NAME, THEIRS);
    let admin = Admin::of(NAME);
    grant_tokens(&admin, NAME);
    admin.apply(service_account("nodes"));
    admin.apply(role_of_service_account("nodes", &arn));
    name_identity(&admin, NAME, "nodes");

    let message = tenant.condition(READY, "False", "AssumeRoleDenied");

    assert!(message.starts_with(&arn), "{message}");
}

#[test]
fn a_corrected_trust_policy_is_accepted_before_the_first_node() {
    const NAME: &str = "tried-corrected";
    const SOURCE: &str = "200000000163";
    const THEIRS: &str = "200000000164";
    static_identity(NAME, SOURCE);
    let arn = role(THEIRS, "nodes");
    let trust = Trust::of(&format!("arn:aws:iam::{SOURCE}:user/{NAME}"));
    let sts = SITE.cloud.sts();
    sts.role(&arn, trust.clone().external_id("another-id"));
    let nodes = json!({
        "roleARN": arn, "allowedNamespaces": {"list": [NAME]}, "externalID": NAME,
        "sourceIdentityRef": {"kind": STATIC_IDENTITY, "name": NAME},
    });
    identity(ROLE_IDENTITY, NAME, &nodes);
    let tenant = Tenant::of_provider(NAME, ROLE_IDENTITY, NAME);
    let message = tenant.condition(READY, "False", "AssumeRoleDenied");
    assert!(message.starts_with(&arn), "{message}");

    sts.role(&arn, trust.external_id(NAME));

    tenant.condition(READY, "True", "CredentialsAccepted");
    let outcomes = outcomes_with(THEIRS);
    let accepted = outcomes.iter().filter(|outcome| *outcome == "OK");
    assert_eq!(accepted.count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.last().map(String::as_str), Some("OK"));
}

#[test]
fn two_clusters_with_one_name_in_one_account_are_reported_to_both() {
    const NAME: &str = "pair";
    const THEIRS: &str = "200000000162";
    const UNIQUE: &str = "AWSClusterNameUnique";
    static_identity(NAME, THEIRS);
    let twin = |namespace| Tenant::of_provider_in(namespace, NAME, STATIC_IDENTITY, NAME);
    let first = twin("pair-a");
    first.condition(UNIQUE, "True", "NameUnique");

    let second = twin("pair-b");

    for (tenant, other) in [(&first, "pair-b"), (&second, "pair-a")] {
        let message = tenant.condition(UNIQUE, "False", "NameNotUnique");
        assert!(message.contains(THEIRS), "{message}");
        let told = tenant.looked_at().to_string();
        assert!(!told.contains(other), "{told}");
    }
    let series = ["pair-a", "pair-b"].map(|namespace| {
        format!(
            r#"node_attestation_cluster_condition{{namespace="{namespace}",cluster="{NAME}",type="{UNIQUE}",status="false"}} 1.0"#
        )
    });
    let measured = poll(PATIENCE, || {
        let text = SITE.diagnostics.scrape();
        let has_all = series.iter().all(|line| text.contains(line));
        has_all.then_some(())
    });
    assert!(measured.is_some(), "{}", SITE.diagnostics.scrape());
    let is_logged = || {
        let log = SITE.manager.process.log().text();
        let lines = log.lines();
        let mut lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| {
            let fields = &line["fields"];
            fields["message"] == "two Clusters with the same name use the same AWS account"
                && fields["cluster"] == "pair-b/pair"
        })
    };
    let logged = poll(PATIENCE, is_logged).unwrap();
    assert_eq!(logged["fields"]["other"], json!("pair-a/pair"), "{logged}");
}
