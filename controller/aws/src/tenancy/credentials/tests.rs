mod names;
mod pauses;
mod regions;
mod secrets;
mod tries;

use std::collections::BTreeSet;
use std::time::Duration;

use node_attestation_runtime::shared::PAGE;
use node_attestation_runtime::shared::testing::most_visited;
use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::tenancy::sessions::testing::{CountingSts, NamedTokens};
use crate::tenancy::store::Source;
use crate::tenancy::testing::{arn, objects, put, role, secret, static_identity};
use crate::tenancy::{Cluster, Infrastructure, ObjectRef, TenancySettings};
use crate::testing::credentials;

const CONTROLLER: &str = "AWSClusterControllerIdentity/default";
const REGION: &str = "eu-west-1";

/// The controller's own credentials.
#[derive(Debug)]
struct Own;

#[async_trait::async_trait]
impl CredentialsSource for Own {
    async fn credentials(&self, _: &Tenant, _: &str) -> Result<Credentials, Unavailable> {
        Ok(credentials(0, "OWN"))
    }
}

struct Bed {
    store: Arc<IdentityStore>,
    sts: Arc<CountingSts>,
    tenants: Arc<TenantCredentials>,
    first_accounts: mpsc::UnboundedReceiver<(ObjectKey, String)>,
}

impl Bed {
    fn new() -> Self {
        Self::with_sts_region(None)
    }

    fn with_sts_region(sts_region: Option<&str>) -> Self {
        Self::with(TenancySettings::default(), sts_region)
    }

    fn with(settings: TenancySettings, sts_region: Option<&str>) -> Self {
        let store = Arc::new(IdentityStore::new(settings, "capa-system"));
        store.update(|all| *all = objects());
        for source in store.sources() {
            store.read(&source);
        }
        let sts = Arc::new(CountingSts::default());
        let clients = TenantClients {
            own: Arc::new(Own),
            sts: sts.clone(),
            tokens: Arc::new(NamedTokens),
            sts_region: sts_region.map(ToOwned::to_owned),
        };
        let key = DigestKey::new(&[7; 32]);
        let (tenants, first_accounts) = TenantCredentials::new(clients, store.clone(), key);
        Self {
            store,
            sts,
            tenants: Arc::new(tenants),
            first_accounts,
        }
    }

    /// A role that every namespace is allowed to use.
    fn role(&self, name: &str) {
        let identity = format!("AWSClusterRoleIdentity/{name}");
        self.store
            .update(|all| put(all, &identity, &role(CONTROLLER, name)));
    }

    /// A cluster in the namespace that has an identity.
    fn cluster(&self, namespace: &str, identity: &str) -> ClusterTenant {
        let key = ObjectKey::new(namespace, "one");
        let infrastructure = ObjectRef {
            kind: "AWSCluster".to_owned(),
            name: "one".to_owned(),
        };
        let cluster = Cluster {
            namespace: namespace.to_owned(),
            name: "one".to_owned(),
            infrastructure: Some(infrastructure),
            ..Cluster::default()
        };
        let (kind, name) = identity.split_once('/').unwrap();
        let spec = json!({"identityRef": {"kind": kind, "name": name}});
        let found: Infrastructure = serde_json::from_value(spec).unwrap();
        self.store.put_cluster(key.clone(), Some(Ok(cluster)));
        self.store
            .put_infrastructure("AWSCluster", key.clone(), Some(Ok(found)));
        ClusterTenant::new(key)
    }

    async fn ask(&self, tenant: &ClusterTenant) -> Result<Credentials, Unavailable> {
        self.ask_in(tenant, REGION).await
    }

    async fn ask_in(
        &self,
        tenant: &ClusterTenant,
        region: &str,
    ) -> Result<Credentials, Unavailable> {
        let tenant = Tenant::Cluster(tenant.clone());
        self.tenants.credentials(&tenant, region).await
    }

    async fn access_key(&self, tenant: &ClusterTenant) -> String {
        let credentials = self.ask(tenant).await.unwrap();
        let provider = credentials.config.credentials_provider().unwrap();
        let keys =
            aws_credential_types::provider::ProvideCredentials::provide_credentials(&provider);
        keys.await.unwrap().access_key_id().to_owned()
    }

    /// The reason why the cluster has no credentials.
    async fn refused(&self, tenant: &ClusterTenant) -> &'static str {
        let error = self.ask(tenant).await.unwrap_err();
        match error.cause::<TenantError>().unwrap() {
            TenantError::Identity { source, .. } => source.reason().unwrap_or("Pending"),
            TenantError::Credentials { source, .. } => source.kind.reason(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_tenant_uses_its_own_identity() {
    let bed = Bed::new();
    bed.role("a");
    bed.role("b");
    let [a, b] = ["a", "b"].map(|name| {
        bed.cluster(
            &format!("tenant-{name}"),
            &format!("AWSClusterRoleIdentity/{name}"),
        )
    });
    assert_eq!(bed.access_key(&a).await, format!("{}#1", arn("a")));
    assert_eq!(bed.access_key(&b).await, format!("{}#2", arn("b")));
    assert_ne!(
        bed.ask(&a).await.unwrap().key,
        bed.ask(&b).await.unwrap().key
    );
    assert_eq!(
        bed.ask(&a).await.unwrap().account.as_deref(),
        Some("111122223333")
    );
    assert_eq!(bed.sts.count(), 2);

    let own = bed
        .tenants
        .credentials(&Tenant::Controller, REGION)
        .await
        .unwrap();
    assert_eq!((own.key, own.account), (credentials(0, "OWN").key, None));
}

#[tokio::test(start_paused = true)]
async fn tenants_with_one_identity_share_its_session() {
    let bed = Bed::new();
    bed.role("a");
    let [a, b] = ["tenant-a", "tenant-b"]
        .map(|namespace| bed.cluster(namespace, "AWSClusterRoleIdentity/a"));
    assert_eq!(bed.access_key(&a).await, bed.access_key(&b).await);
    assert_eq!(bed.sts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_in_a_namespace_that_is_no_longer_permitted_loses_its_session() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.access_key(&a).await;
    let others = json!({"allowedNamespaces": {"list": ["tenant-b"]}});
    bed.store.update(|all| put(all, CONTROLLER, &others));
    assert_eq!(bed.refused(&a).await, "SourceUsageUnauthorized");
    assert_eq!(bed.tenants.expiry(&a.cluster), None);
    assert_eq!(bed.sts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_rotated_secret_is_used_for_the_next_request() {
    let bed = Bed::new();
    bed.store.update(|all| static_identity(all, "keys"));
    bed.store.read(&Source::Secret("keys".to_owned()));
    let a = bed.cluster("tenant-a", "AWSClusterStaticIdentity/keys");
    assert_eq!(bed.access_key(&a).await, "AKIA1");
    bed.store.update(|all| {
        secret(
            all,
            "keys",
            &[("AccessKeyID", "AKIA2"), ("SecretAccessKey", "s")],
        );
    });
    assert_eq!(bed.access_key(&a).await, "AKIA2");
}

#[tokio::test(start_paused = true)]
async fn the_first_account_of_a_cluster_is_recorded_and_kept() {
    let mut bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.tenants.read_pin(&a.cluster, None);
    bed.access_key(&a).await;
    bed.access_key(&a).await;
    let first = (a.cluster.clone(), "111122223333".to_owned());
    assert_eq!(bed.first_accounts.try_recv(), Ok(first));
    assert!(bed.first_accounts.try_recv().is_err());

    let mut elsewhere = role(CONTROLLER, "a");
    elsewhere["roleARN"] = json!("arn:aws:iam::444455556666:role/a");
    bed.store
        .update(|all| put(all, "AWSClusterRoleIdentity/a", &elsewhere));
    assert_eq!(bed.refused(&a).await, "AccountMismatch");
    let report = bed.tenants.identity_report(&a);
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::False, "AccountMismatch")
    );

    // An administrator removes the annotation after the controller has read it.
    bed.tenants.read_pin(&a.cluster, Some("111122223333"));
    assert_eq!(bed.refused(&a).await, "AccountMismatch");
    bed.tenants.read_pin(&a.cluster, None);
    assert_eq!(
        bed.ask(&a).await.unwrap().account.as_deref(),
        Some("444455556666")
    );
}

#[tokio::test(start_paused = true)]
async fn a_recorded_account_is_kept_after_a_controller_restart() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.tenants.read_pin(&a.cluster, Some("444455556666"));
    assert_eq!(bed.refused(&a).await, "AccountMismatch");
    assert_eq!(bed.sts.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_condition_contains_the_identity_and_its_account() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    let report = bed.tenants.identity_report(&a);
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::True, "Resolved")
    );
    let chain = "EC2 is called as AWSClusterRoleIdentity/a over AWSClusterControllerIdentity/default, account 111122223333";
    assert_eq!(report.message, chain);

    let unknown = bed.cluster("tenant-a", "AWSClusterRoleIdentity/none");
    let report = bed.tenants.identity_report(&unknown);
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::False, "IdentityNotFound")
    );
    assert_eq!(bed.refused(&unknown).await, "IdentityNotFound");

    bed.store.failed(&Source::Namespaces);
    advance(Duration::from_mins(3)).await;
    let report = bed.tenants.identity_report(&a);
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::Unknown, "Pending")
    );
    assert_eq!(bed.refused(&a).await, "Pending");
}

#[tokio::test(start_paused = true)]
async fn the_condition_contains_the_reason_for_a_failed_assume_role() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    assert_eq!(bed.tenants.credentials_report(&a.cluster), None);
    let denied = FailureKind::Refused {
        code: "AccessDenied".to_owned(),
        request_id: Some("1-2".to_owned()),
    };
    for (failure, holds, reason) in [
        (denied, ConditionStatus::False, "AssumeRoleDenied"),
        (
            FailureKind::Throttled("Throttling".to_owned()),
            ConditionStatus::Unknown,
            "Throttled",
        ),
        (
            FailureKind::Unavailable("no connection".to_owned()),
            ConditionStatus::Unknown,
            "STSUnavailable",
        ),
    ] {
        bed.sts.fail(&arn("a"), Some(failure));
        assert_eq!(bed.refused(&a).await, reason);
        let report = bed.tenants.credentials_report(&a.cluster).unwrap();
        assert_eq!((report.holds, report.reason), (holds, reason));
        assert!(report.message.starts_with(&arn("a")), "{}", report.message);
        sleep(Duration::from_mins(20)).await;
    }
    bed.sts.fail(&arn("a"), None);
    bed.access_key(&a).await;
    assert_eq!(bed.tenants.credentials_report(&a.cluster), None);
    assert!(bed.tenants.expiry(&a.cluster).is_some());
}

#[tokio::test(start_paused = true)]
async fn deleted_clusters_are_dropped() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.access_key(&a).await;
    bed.tenants.forget_gone();
    assert!(bed.tenants.expiry(&a.cluster).is_some());
    bed.store.put_cluster(a.cluster.clone(), None);
    bed.tenants.forget_gone();
    assert_eq!(bed.tenants.expiry(&a.cluster), None);
}

#[test]
fn sts_runs_in_the_configured_region_or_the_cluster_partition() {
    let bed = Bed::with_sts_region(Some("us-east-1"));
    assert_eq!(bed.tenants.sts_region("eu-west-1"), "us-east-1");
    assert_eq!(bed.tenants.sts_region("cn-north-1"), "cn-north-1");
    assert_eq!(Bed::new().tenants.sts_region("eu-west-1"), "eu-west-1");
}

#[tokio::test(start_paused = true)]
async fn the_condition_reports_a_mismatch_with_the_account_from_aws() {
    let bed = Bed::new();
    bed.store.update(|all| static_identity(all, "keys"));
    bed.store.read(&Source::Secret("keys".to_owned()));
    let a = bed.cluster("tenant-a", "AWSClusterStaticIdentity/keys");
    bed.tenants.read_pin(&a.cluster, Some("111122223333"));
    assert_eq!(bed.tenants.identity_report(&a).reason, "Resolved");

    assert_eq!(bed.refused(&a).await, "AccountMismatch");
    let report = bed.tenants.identity_report(&a);
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::False, "AccountMismatch")
    );
    assert!(
        report.message.contains("999988887777"),
        "{}",
        report.message
    );

    bed.tenants.read_pin(&a.cluster, Some("999988887777"));
    assert!(bed.ask(&a).await.is_ok());
    assert_eq!(bed.tenants.identity_report(&a).reason, "Resolved");
}

#[tokio::test(start_paused = true)]
async fn an_account_mismatch_is_reported_only_for_its_own_credentials() {
    let bed = Bed::new();
    bed.store.update(|all| static_identity(all, "keys"));
    bed.store.read(&Source::Secret("keys".to_owned()));
    let a = bed.cluster("tenant-a", "AWSClusterStaticIdentity/keys");
    bed.tenants.read_pin(&a.cluster, Some("111122223333"));
    assert_eq!(bed.refused(&a).await, "AccountMismatch");
    assert_eq!(bed.tenants.identity_report(&a).reason, "AccountMismatch");

    // An administrator has corrected the Secret, but no request has arrived since then.
    let data = [("AccessKeyID", "AKIA2"), ("SecretAccessKey", "s")];
    bed.store.update(|all| secret(all, "keys", &data));
    assert_eq!(bed.tenants.identity_report(&a).reason, "Resolved");
    bed.store.update(|all| static_identity(all, "keys"));
    assert_eq!(bed.tenants.identity_report(&a).reason, "AccountMismatch");
}

#[tokio::test(start_paused = true)]
async fn the_controller_identity_fallback_is_reported_without_resolution() {
    let settings = TenancySettings {
        allow_controller_identity_fallback: true,
        ..TenancySettings::default()
    };
    let bed = Bed::with(settings, None);
    let key = ObjectKey::new("tenant-a", "one");
    let cluster = Cluster {
        namespace: "tenant-a".to_owned(),
        name: "one".to_owned(),
        ..Cluster::default()
    };
    bed.store.put_cluster(key.clone(), Some(Ok(cluster)));
    let a = ClusterTenant::new(key);
    assert_eq!(bed.access_key(&a).await, "OWN");
    let report = bed.tenants.identity_report(&a);
    assert_eq!(
        (report.holds, report.reason, &*report.message),
        (
            ConditionStatus::Unknown,
            "ControllerIdentity",
            "no object specifies an AWS identity for the cluster: EC2 is called with the controller's own credentials, \
             account 999988887777",
        )
    );
    // An identity that has the same credentials counts as the same identity.
    let named = bed.cluster("tenant-a", CONTROLLER);
    let report = bed.tenants.identity_report(&named);
    assert_eq!(
        (report.holds, report.reason),
        (ConditionStatus::True, "Resolved")
    );
}

#[tokio::test(start_paused = true)]
async fn the_condition_contains_the_reason_for_a_failed_account_query() {
    let bed = Bed::new();
    let a = bed.cluster("tenant-a", CONTROLLER);
    let refused = FailureKind::Refused {
        code: "InvalidClientTokenId".to_owned(),
        request_id: None,
    };
    bed.sts.fail("GetCallerIdentity", Some(refused));
    assert_eq!(bed.refused(&a).await, "AssumeRoleDenied");
    let report = bed.tenants.credentials_report(&a.cluster).unwrap();
    assert_eq!(report.reason, "AssumeRoleDenied");
}

#[tokio::test(start_paused = true)]
async fn an_account_is_recorded_only_after_its_role_is_assumed() {
    let mut bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    let denied = FailureKind::Refused {
        code: "AccessDenied".to_owned(),
        request_id: None,
    };
    bed.sts.fail(&arn("a"), Some(denied));
    assert_eq!(bed.refused(&a).await, "AssumeRoleDenied");
    assert!(bed.first_accounts.try_recv().is_err());

    let mut corrected = role(CONTROLLER, "a");
    corrected["roleARN"] = json!("arn:aws:iam::444455556666:role/a");
    bed.store
        .update(|all| put(all, "AWSClusterRoleIdentity/a", &corrected));
    bed.ask(&a).await.unwrap();
    let first = (a.cluster, "444455556666".to_owned());
    assert_eq!(bed.first_accounts.try_recv(), Ok(first));
}

#[tokio::test(start_paused = true)]
async fn a_recorded_account_is_kept_while_the_clusters_are_unknown() {
    let bed = Bed::new();
    bed.role("a");
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.tenants.read_pin(&a.cluster, Some("444455556666"));
    bed.store.forget(&Source::Clusters);
    bed.tenants.forget_gone();
    let a = bed.cluster("tenant-a", "AWSClusterRoleIdentity/a");
    bed.store.read(&Source::Clusters);
    assert_eq!(bed.refused(&a).await, "AccountMismatch");
}

#[tokio::test(start_paused = true)]
async fn deleted_clusters_are_dropped_in_small_steps() {
    let bed = Bed::new();
    bed.role("a");
    let mut last = None;
    for number in 0..2 * PAGE {
        let tenant = bed.cluster(&format!("tenant-{number}"), "AWSClusterRoleIdentity/a");
        bed.ask(&tenant).await.unwrap();
        last = Some(tenant.cluster);
    }
    let one: BTreeSet<ObjectKey> = last.into_iter().collect();
    bed.store.retain(&Source::Clusters, &one);

    let visited = most_visited(|| bed.tenants.forget_gone());

    assert_eq!(visited[&Lock::TenantSessions], PAGE);
    assert_eq!(visited[&Lock::TenantAccounts], PAGE);
    assert_eq!(bed.tenants.clusters.read(BTreeMap::len), 1);
}
