//! Tests of instances whose tenant has an identity that can be resolved.

use serde_json::{Value, json};

use super::*;
use crate::tenancy::credentials::{TenantClients, TenantError};
use crate::tenancy::sessions::testing::{CountingSts, NamedTokens, StrictSts};
use crate::tenancy::store::{IdentityStore, Source};
use crate::tenancy::testing::{objects, put, role};
use crate::tenancy::{DigestKey, IdentityKind, TenancySettings};
use crate::testing::one_cluster;

/// Decides on an instance in the account and region of the case. The tenant has a role in the same account, and this
/// region in its `AWSCluster`.
async fn decide(case: &mut Case, region: &Value) -> Result<Assurance, Refusal> {
    decide_after(case, region, |_| ()).await.0
}

/// Does the same as [`decide`], after this change to the objects. Also returns the number of STS calls for credentials.
async fn decide_after(
    case: &mut Case,
    region: &Value,
    change: impl FnOnce(&IdentityStore),
) -> (Result<Assurance, Refusal>, usize) {
    let (verifier, sts) = verifier_after(case, region, change);
    (case.decide_by(&verifier).await, sts.count())
}

/// The tenant's verifier after this change to the objects, and the STS that issues its credentials.
fn verifier_after(
    case: &Case,
    region: &Value,
    change: impl FnOnce(&IdentityStore),
) -> (AwsVerifier, Arc<CountingSts>) {
    let store = IdentityStore::new(TenancySettings::default(), "capa-system");
    store.update(|all| {
        *all = objects();
        let identity = role("AWSClusterControllerIdentity/default", "nodes");
        put(all, "AWSClusterRoleIdentity/nodes", &identity);
    });
    let identity = json!({"kind": "AWSClusterRoleIdentity", "name": "nodes"});
    let spec = json!({"identityRef": identity, "region": region});
    let tenant = one_cluster(&store, &spec);
    change(&store);
    let sts = Arc::new(CountingSts::default());
    let clients = TenantClients {
        own: StrictSts::own(),
        sts: sts.clone(),
        tokens: Arc::new(NamedTokens),
        sts_region: None,
    };
    let key = DigestKey::new(&[7; 32]);
    let (tenants, _) = TenantCredentials::new(clients, Arc::new(store), key);
    let tenants = Arc::new(tenants);
    let policy = case.policy.clone().of_tenant(Tenant::Cluster(tenant));
    let clients = case.clients(tenants.clone()).with_tenants(tenants);
    (AwsVerifier::new(Arc::new(clients), policy, ""), sts)
}

#[tokio::test]
async fn a_tenants_reports_contain_its_identity_and_credentials() {
    let case = Case::valid();
    let reports = |verifier: &AwsVerifier| {
        let reports = <[_; 3]>::try_from(verifier.reports()).unwrap();
        reports.map(|report| (report.holds, report.reason, report.message))
    };
    let (verifier, _) = verifier_after(&case, &json!(REGION), |_| ());
    let [_, (holds, reason, message), name] = reports(&verifier);
    assert_eq!((holds, reason), (ConditionStatus::Unknown, "Pending"));
    assert!(!message.contains("the session ends"), "{message}");
    assert_eq!((name.0, name.1), (ConditionStatus::Unknown, "Pending"));

    case.decide_by(&verifier).await.unwrap();
    let [(identity, ..), (holds, reason, message), name] = reports(&verifier);
    assert_eq!((name.0, name.1), (ConditionStatus::True, "NameUnique"));
    assert_eq!(identity, ConditionStatus::True);
    assert_eq!(
        (holds, reason),
        (ConditionStatus::True, "CredentialsAccepted")
    );
    assert!(message.contains("; the session ends at "), "{message}");

    let (verifier, _) = verifier_after(&case, &json!(REGION), |objects| {
        objects.update(|all| all.remove_identity(IdentityKind::Role, "", "nodes"));
    });
    let [(identity, ..), (holds, reason, _), _] = reports(&verifier);
    assert_eq!(identity, ConditionStatus::False);
    assert_eq!(
        (holds, reason),
        (ConditionStatus::False, "IdentityNotResolved")
    );
}

#[tokio::test(start_paused = true)]
async fn accepted_credentials_are_reported_before_the_first_instance() {
    let case = Case::valid();
    let (verifier, sts) = verifier_after(&case, &json!(REGION), |_| ());
    let background = verifier.background().unwrap();

    let tried = tokio::time::timeout(Duration::from_hours(2), background).await;

    assert!(tried.is_err());
    assert_eq!(sts.count(), 1);
    let [_, ready, _] = <[_; 3]>::try_from(verifier.reports()).unwrap();
    assert_eq!(
        (ready.holds, ready.reason),
        (ConditionStatus::True, "CredentialsAccepted")
    );
    let message = "STS accepted the credentials; EC2 has not been called yet; the session ends at ";
    assert!(ready.message.starts_with(message), "{}", ready.message);
    assert!(case.ec2.calls().is_empty());
}

#[tokio::test]
async fn an_instance_outside_the_region_of_its_aws_cluster_is_denied() {
    for region in ["eu-west-2", "us-east-1"] {
        let mut case = Case::valid();
        let refused = decide(&mut case, &json!(region)).await.unwrap_err();
        let denied = AwsDenial::RegionNotAllowed(REGION.to_owned());
        assert_eq!(of_aws(refused), denied);
        assert!(case.ec2.calls().is_empty());
    }
    for region in [json!(REGION), json!(""), Value::Null] {
        let mut case = Case::valid();
        let decided = decide(&mut case, &region).await;
        assert!(decided.is_ok(), "{region}: {decided:?}");
    }
}

#[tokio::test]
async fn ec2_is_not_called_for_an_instance_in_another_account() {
    let other = "210987654321";
    let mut case = Case::valid();
    case.document = Document::new(other, REGION, "eu-west-1a", INSTANCE);
    case.principal = Principal::instance(other, INSTANCE);

    let refused = decide(&mut case, &json!(REGION)).await.unwrap_err();

    let denied = AwsDenial::AccountNotAllowed(other.to_owned());
    assert_eq!(of_aws(refused), denied);
    assert!(case.ec2.calls().is_empty());
}

#[tokio::test]
async fn an_instance_in_a_foreign_region_is_denied_without_a_call() {
    let mut case = Case::valid();
    let (refused, asked) = decide_after(&mut case, &json!("eu-west-2"), |_| ()).await;
    let denied = AwsDenial::RegionNotAllowed(REGION.to_owned());
    assert_eq!(of_aws(refused.unwrap_err()), denied);
    assert_eq!((asked, case.sts.calls().len()), (0, 0));
    let (decided, calls) = decide_after(&mut case, &json!(REGION), |_| ()).await;
    assert!(decided.is_ok());
    assert_eq!(calls, 1);
}

#[tokio::test]
async fn a_foreign_region_is_not_denied_during_a_broken_watch() {
    for source in [Source::Clusters, Source::Infrastructure("AWSCluster")] {
        let mut case = Case::valid();
        let breaks = |objects: &IdentityStore| {
            assert!(objects.failed(&source));
        };
        let (refused, asked) = decide_after(&mut case, &json!("eu-west-2"), breaks).await;
        let Err(Refusal::Retry(Deferral::VerifierUnavailable(outage))) = refused else {
            panic!("{source}: {refused:?}")
        };
        assert!(
            outage.cause::<TenantError>().is_some(),
            "{source}: {outage}"
        );
        assert_eq!(asked, 0, "{source}");
        let (decided, _) = decide_after(&mut case, &json!(REGION), breaks).await;
        assert!(decided.is_ok(), "{source}: {decided:?}");
    }
    // The tenant's other objects do not specify the region.
    let mut case = Case::valid();
    let breaks = |objects: &IdentityStore| {
        assert!(objects.failed(&Source::Namespaces));
    };
    let (refused, _) = decide_after(&mut case, &json!("eu-west-2"), breaks).await;
    let denied = AwsDenial::RegionNotAllowed(REGION.to_owned());
    assert_eq!(of_aws(refused.unwrap_err()), denied);
}

#[tokio::test]
async fn a_foreign_region_is_not_denied_while_the_identity_is_unresolved() {
    let mut case = Case::valid();
    let removes = |objects: &IdentityStore| {
        objects.update(|all| all.remove_identity(IdentityKind::Role, "", "nodes"));
    };
    let (refused, asked) = decide_after(&mut case, &json!("eu-west-2"), removes).await;
    let Err(Refusal::Retry(Deferral::VerifierUnavailable(outage))) = refused else {
        panic!("{refused:?}")
    };
    assert!(outage.cause::<TenantError>().is_some(), "{outage}");
    assert_eq!(asked, 0);
}

fn of_aws(refusal: Refusal) -> AwsDenial {
    let Refusal::Deny(Denial::Evidence(denial)) = refusal else {
        panic!("{refusal:?}")
    };
    denial.downcast_ref::<AwsDenial>().unwrap().clone()
}
