//! Tests of sessions that EC2 rejects, with the real SDK, moto's EC2 and a strict STS.

use kubelet_authenticator_test_support::sts::{Fault, Trust};
use serde_json::json;

use super::*;
use crate::tenancy::credentials::{TenantClients, TenantCredentials};
use crate::tenancy::sessions::testing::{CONTROLLER_USER, NamedTokens, StrictSts};
use crate::tenancy::store::IdentityStore;
use crate::tenancy::testing::{objects, put};
use crate::tenancy::{DigestKey, TenancySettings};
use crate::testing::one_cluster;

/// A cluster whose identity is a role in this account.
struct Site {
    sts: StrictSts,
    source: Arc<TenantCredentials>,
    tenant: Tenant,
    account: &'static str,
}

impl Site {
    fn new(account: &'static str) -> Self {
        let sts = StrictSts::start(REGION);
        let role = format!("arn:aws:iam::{account}:role/nodes");
        sts.service.role(&role, Trust::of(CONTROLLER_USER));
        let store = IdentityStore::new(TenancySettings::default(), "capa-system");
        let source = json!({"kind": "AWSClusterControllerIdentity", "name": "default"});
        let identity =
            json!({"allowedNamespaces": {}, "roleARN": role, "sourceIdentityRef": source});
        store.update(|all| {
            *all = objects();
            put(all, "AWSClusterRoleIdentity/nodes", &identity);
        });
        let spec = json!({"identityRef": {"kind": "AWSClusterRoleIdentity", "name": "nodes"}});
        let tenant = one_cluster(&store, &spec);
        let clients = TenantClients {
            own: StrictSts::own(),
            sts: Arc::new(sts.sdk()),
            tokens: Arc::new(NamedTokens),
            sts_region: None,
        };
        let (credentials, _) =
            TenantCredentials::new(clients, Arc::new(store), DigestKey::new(&[7; 32]));
        Self {
            sts,
            source: Arc::new(credentials),
            tenant: Tenant::Cluster(tenant),
            account,
        }
    }

    /// The instances. Their EC2 client retries immediately after a failure.
    fn instances(&self) -> Instances {
        let calls = CallLimits {
            pause: Duration::ZERO,
            ..Limits::default().calls
        };
        let limits = Limits {
            calls,
            ..Limits::default()
        };
        Instances::with(self.source.clone(), Arc::new(Ec2::new(settings())), limits)
    }

    fn refuse(&self, times: Times, code: &'static str) {
        let refusal = Failure::Error { status: 401, code };
        MOTO.inject(Scope::account(self.account), times, refusal);
    }

    async fn describe(
        &self,
        instances: &Instances,
        instance: &Instance,
    ) -> Result<Option<InstanceFacts>, OutageKind> {
        let described = instances.describe(&self.tenant, REGION, &instance.id);
        let described = described.await;
        described.map_err(|error| error.cause::<Outage>().unwrap().kind.clone())
    }

    /// The number of sessions from STS, and the number of EC2 calls.
    fn calls(&self) -> (usize, usize) {
        (self.sts.parameters().len(), calls(self.account).len())
    }
}

fn settings() -> Ec2Settings {
    Ec2Settings {
        endpoints: [(REGION.to_owned(), MOTO.url())].into(),
    }
}

#[tokio::test]
async fn a_session_that_ec2_rejects_is_renewed_and_the_call_is_retried() {
    for (account, code) in [
        ("200000000021", "ExpiredToken"),
        ("200000000022", "RequestExpired"),
        ("200000000023", "SignatureDoesNotMatch"),
        ("200000000024", "AuthFailure"),
        ("200000000025", "InvalidClientTokenId"),
    ] {
        let site = Site::new(account);
        let instance = instance(account);
        site.refuse(Times::once(), code);

        let facts = site.describe(&site.instances(), &instance).await;

        assert_eq!(facts.unwrap().unwrap().id, instance.id, "{code}");
        assert_eq!(site.calls(), (2, 2), "{code}");
    }
}

#[tokio::test]
async fn a_session_that_ec2_refuses_twice_is_reported_as_an_outage() {
    let site = Site::new("200000000026");
    let instance = instance(site.account);
    site.refuse(Times::first(2), "ExpiredToken");
    let instances = site.instances();

    let refused = site.describe(&instances, &instance).await;

    let expired = OutageKind::Credentials("ExpiredToken".to_owned());
    assert_eq!(refused, Err(expired));
    assert_eq!(site.calls(), (2, 2));
    // The next call uses the session that STS has already issued.
    let facts = site.describe(&instances, &instance).await;
    assert_eq!(facts.unwrap().unwrap().id, instance.id);
    assert_eq!(site.calls(), (2, 3));
}

#[tokio::test]
async fn an_authorization_or_account_error_keeps_the_session() {
    for (account, code, expected) in [
        (
            "200000000027",
            "OptInRequired",
            OutageKind::Credentials("OptInRequired".to_owned()),
        ),
        (
            "200000000028",
            "UnauthorizedOperation",
            OutageKind::NotAllowed("ec2:DescribeInstances", "UnauthorizedOperation".to_owned()),
        ),
        (
            "200000000029",
            "RequestLimitExceeded",
            OutageKind::Throttled("RequestLimitExceeded".to_owned()),
        ),
    ] {
        let site = Site::new(account);
        let instance = instance(account);
        site.refuse(Times::once(), code);
        let refused = site.describe(&site.instances(), &instance).await;
        assert_eq!(refused, Err(expected));
        assert_eq!(site.calls(), (1, 1), "{code}");
    }
}

#[tokio::test]
async fn a_session_refused_once_is_still_used_during_an_sts_outage() {
    let site = Site::new("200000000031");
    let (refused, facts) = after_an_outage_of_sts(&site, Times::once()).await;
    assert_eq!(refused.unwrap().unwrap().id, facts.id);
    assert_eq!(site.calls(), (2, 2));
}

#[tokio::test]
async fn an_sts_outage_after_a_refused_session_is_reported_as_an_outage() {
    let site = Site::new("200000000030");
    let (refused, _) = after_an_outage_of_sts(&site, Times::first(2)).await;
    let expired = OutageKind::Credentials("ExpiredToken".to_owned());
    assert_eq!(refused, Err(expired));
    assert_eq!(site.calls(), (2, 2));
}

/// The result for the instance if EC2 rejects the session this many times, and STS does not return a new session.
async fn after_an_outage_of_sts(
    site: &Site,
    times: Times,
) -> (Result<Option<InstanceFacts>, OutageKind>, Instance) {
    let instance = instance(site.account);
    let instances = site.instances();
    let credentials = site.source.credentials(&site.tenant, REGION).await.unwrap();
    assert!(credentials.account.is_some());
    site.refuse(times, "ExpiredToken");
    let throttled = Fault::throttling();
    site.sts.service.inject(Times::once(), throttled);
    (site.describe(&instances, &instance).await, instance)
}
