//! A tenant with the longest possible identities and names, in many Clusters and regions. No call leaves this process,
//! and no time passes while a call waits.

use std::sync::Arc;

use kubelet_attestation::secret::Secret;
use node_attestation_aws::credentials::{ClusterTenant, Tenant};
use node_attestation_aws::ec2::{Ec2, Ec2Settings, Instances, Limits};
use node_attestation_aws::tenancy::credentials::{TenantClients, TenantCredentials};
use node_attestation_aws::tenancy::sessions::{
    AssumeRole, FailureKind, Issued, Keys, TokenError, Tokens,
};
use node_attestation_aws::tenancy::store::IdentityStore;
use node_attestation_aws::tenancy::{
    Cluster, DigestKey, Identity, IdentityKind, Role, ServiceAccount, TenancySettings,
};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::clock::now;
use node_attestation_runtime::shared::{InUse, Lock};
use serde_json::json;
use tokio::runtime::Builder;

use crate::controller::OneTenant;

/// The number of Clusters, each with an identity.
const CLUSTERS: usize = 100;

/// The number of regions for each Cluster. It exceeds the number of sessions that a Cluster keeps. With all Clusters,
/// it exceeds the number of EC2 lanes that a namespace can have.
const REGIONS: usize = 12;

/// The number of Clusters with lists of `ConfigMaps`, which is the default limit for a namespace.
const MANY_CLUSTERS: usize = 1000;

const NAMESPACE: &str = "tenant-a";

/// Uses the identities, so that the time under the locks can be measured.
pub(crate) fn serve() {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(serve_all());
    share_maps();
}

/// Uses the manager's maps for the attestation provider `tpm`, with the same keys: the UID of a Cluster, and the names
/// of its `ConfigMaps`.
fn share_maps() {
    let observations: InUse<String, ()> = InUse::new(Lock::Observations);
    let readers: InUse<Arc<(String, Vec<String>)>, ()> = InUse::new(Lock::ConfigMapReaders);
    let names = (0..64).map(|number| format!("{number:02}{}", "n".repeat(251)));
    let names: Vec<String> = names.collect();
    let of_cluster = |number: usize| {
        let mut names = names.clone();
        names.push(number.to_string());
        let names = Arc::new((NAMESPACE.to_owned(), names));
        let observed = observations.get_or_insert_with(number.to_string(), Arc::default);
        (observed, readers.get_or_insert_with(names, Arc::default))
    };
    let kept: Vec<_> = (0..MANY_CLUSTERS).map(of_cluster).collect();
    assert_eq!(kept.len(), MANY_CLUSTERS);
}

async fn serve_all() {
    let store = Arc::new(IdentityStore::new(
        TenancySettings::default(),
        "capa-system",
    ));
    let tenants: Vec<ClusterTenant> = (0..CLUSTERS).map(|number| put(&store, number)).collect();
    for source in store.sources() {
        store.read(&source);
    }
    let clients = TenantClients {
        own: Arc::new(OneTenant::new()),
        sts: Arc::new(AllTrusted),
        tokens: Arc::new(AllTrusted),
        sts_region: None,
    };
    let key = DigestKey::new(&[7; 32]);
    let (credentials, _first_accounts) = TenantCredentials::new(clients, store.clone(), key);
    let credentials = Arc::new(credentials);
    let ec2 = Arc::new(Ec2::new(Ec2Settings::default()));
    let instances = Instances::with(credentials.clone(), ec2, Limits::default());
    for tenant in &tenants {
        let of = Tenant::Cluster(tenant.clone());
        for number in 0..REGIONS {
            let region = format!("eu-west-{number}");
            // EC2 cannot be called, because the credentials have no network.
            let described = instances.describe(&of, &region, "i-0123456789abcdef0");
            assert!(described.await.is_err());
        }
        drop(credentials.identity_report(tenant));
        drop(credentials.credentials_report(&tenant.cluster));
    }
    credentials.forget_gone();
}

/// Stores a Cluster with its identity.
fn put(store: &IdentityStore, number: usize) -> ClusterTenant {
    let key = ObjectKey::new(NAMESPACE, format!("{number:03}{}", "c".repeat(200)));
    let cluster = Cluster {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        ..Cluster::default()
    };
    store.put_cluster(key.clone(), Some(Ok(cluster)));
    let identity = Identity::parse(IdentityKind::ServiceAccount, &spec());
    assert!(identity.is_readable());
    drop(store.update(|objects| objects.put_identity(NAMESPACE, &key.name, identity)));
    ClusterTenant {
        service_account_identity: Some(key.name.clone()),
        ..ClusterTenant::new(key)
    }
}

/// The longest identity that the API server accepts.
fn spec() -> String {
    let policy = |number: usize| format!("arn:aws:iam::aws:policy/{number}{}", "p".repeat(2000));
    let audience = |number: usize| format!("{number}{}", "a".repeat(252));
    let spec = json!({
        "roleARN": format!("arn:aws:iam::111122223333:role/{}", "r".repeat(2000)),
        "inlinePolicy": format!("\"{}\"", "i".repeat(2046)),
        "policyARNs": (0..10).map(policy).collect::<Vec<_>>(),
        "audiences": (0..8).map(audience).collect::<Vec<_>>(),
    });
    spec.to_string()
}

/// A simulated STS and API server that accept every call.
#[derive(Debug)]
struct AllTrusted;

#[async_trait::async_trait]
impl AssumeRole for AllTrusted {
    async fn assume_role(&self, _: &Keys, role: &Role, _: &str) -> Result<Issued, FailureKind> {
        Ok(issued(role))
    }

    async fn assume_role_with_web_identity(
        &self,
        _: &Secret<String>,
        role: &Role,
        _: &str,
    ) -> Result<Issued, FailureKind> {
        Ok(issued(role))
    }

    async fn account(&self, _: &Keys, _: &str) -> Result<String, FailureKind> {
        Ok("111122223333".to_owned())
    }
}

#[async_trait::async_trait]
impl Tokens for AllTrusted {
    async fn token(&self, _: &ServiceAccount) -> Result<Secret<String>, TokenError> {
        Ok(Secret::new("token".to_owned()))
    }
}

fn issued(role: &Role) -> Issued {
    let expires = now() + role.duration;
    let keys = Keys::new("key", "secret", None, Some(expires), "bench");
    Issued { keys, expires }
}
