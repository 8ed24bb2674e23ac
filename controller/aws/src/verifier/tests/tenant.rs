//! Instances of a tenant whose identity is resolved.

use serde_json::{Value, json};

use super::*;
use crate::identity_store::IdentityStore;
use crate::sessions::testing::{CountingSts, NamedTokens, StrictSts};
use crate::tenancy::testing::{objects, put, role};
use crate::tenancy::{DigestKey, TenancySettings};
use crate::tenants::TenantClients;
use crate::testing::one_cluster;

/// Decides on an instance of the account and region of the case, for a tenant with a role of the same account and
/// this region in its `AWSCluster`.
async fn decide(case: &mut Case, region: &Value) -> Result<Assurance, Refusal> {
    let store = IdentityStore::new(TenancySettings::default(), "capa-system");
    store.update(|all| {
        *all = objects();
        let identity = role("AWSClusterControllerIdentity/default", "nodes");
        put(all, "AWSClusterRoleIdentity/nodes", &identity);
    });
    let identity = json!({"kind": "AWSClusterRoleIdentity", "name": "nodes"});
    let spec = json!({"identityRef": identity, "region": region});
    let tenant = one_cluster(&store, &spec);
    let clients = TenantClients {
        own: StrictSts::own(),
        sts: Arc::new(CountingSts::default()),
        tokens: Arc::new(NamedTokens),
        sts_region: None,
    };
    let key = DigestKey::new(&[7; 32]);
    let (tenants, _) = TenantCredentials::new(clients, Arc::new(store), key);
    let tenants = Arc::new(tenants);
    let policy = case.policy.clone().of_tenant(Tenant::Cluster(tenant));
    let clients = case.clients(tenants.clone()).with_tenants(tenants);
    case.decide_by(&AwsVerifier::new(Arc::new(clients), policy, ""))
        .await
}

#[tokio::test]
async fn an_instance_in_another_region_than_its_aws_cluster_is_denied() {
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

fn of_aws(refusal: Refusal) -> AwsDenial {
    let Refusal::Deny(Denial::Evidence(denial)) = refusal else {
        panic!("{refusal:?}")
    };
    denial.downcast_ref::<AwsDenial>().unwrap().clone()
}
