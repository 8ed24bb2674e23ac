//! Test doubles of EC2 and of credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::provider::{ProvideCredentials as _, SharedCredentialsProvider};
use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::capi::ObjectKey;
use serde_json::Value;

use crate::credentials::ClusterTenant;
use crate::credentials::{Credentials, CredentialsKey, CredentialsSource, Lease, Tenant};
use crate::document::VerifiedDocument;
use crate::ec2::{Attachment, Describe, InstanceFacts, OutageKind, Page, Query, RootDevice};
use crate::tenancy::store::IdentityStore;
use crate::tenancy::{Cluster, ObjectRef};

pub(crate) const ACCOUNT: &str = "111122223333";
pub(crate) const REGION: &str = "eu-west-1";
pub(crate) const INSTANCE: &str = "i-0123456789abcdef0";
pub(crate) const MINUTE: Duration = Duration::from_mins(1);

/// The time at which the instance was launched.
pub(crate) fn launch() -> SystemTime {
    UNIX_EPOCH + Duration::from_hours(500_000)
}

/// The document for an instance that was launched at this time.
pub(crate) fn document() -> VerifiedDocument {
    VerifiedDocument {
        account: ACCOUNT.to_owned(),
        region: REGION.to_owned(),
        availability_zone: "eu-west-1a".to_owned(),
        instance: INSTANCE.to_owned(),
        pending_time: launch(),
        digest: [1; 32],
    }
}

/// EC2's description of that instance, which belongs to the cluster `prod`.
pub(crate) fn facts() -> InstanceFacts {
    let attached = Attachment {
        time: Some(launch()),
    };
    InstanceFacts {
        id: INSTANCE.to_owned(),
        owner: ACCOUNT.to_owned(),
        state: "running".to_owned(),
        zone: "eu-west-1a".to_owned(),
        launched: Some(launch()),
        private_dns_name: Some("ip-10-0-0-1.eu-west-1.compute.internal".to_owned()),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        dns_names: vec!["ip-10-0-0-1.eu-west-1.compute.internal".to_owned()],
        first_interface: Some(attached),
        root: RootDevice::Volume(Some(attached)),
        tags: BTreeMap::from([(
            "sigs.k8s.io/cluster-api-provider-aws/cluster/prod".to_owned(),
            "owned".to_owned(),
        )]),
    }
}

pub(crate) fn named(id: &str) -> InstanceFacts {
    InstanceFacts {
        id: id.to_owned(),
        ..facts()
    }
}

/// The credentials in an access key, and the values that distinguish them from other credentials.
pub(crate) fn credentials(key: u8, access_key: &str) -> Credentials {
    let provider = aws_credential_types::Credentials::new(access_key, "secret", None, None, "test");
    Credentials {
        key: CredentialsKey::new([key; 32]),
        config: SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(SharedCredentialsProvider::new(provider))
            .build(),
        account: None,
        lease: Lease::Endless,
    }
}

/// The tenant whose instances are in this account.
pub(crate) fn tenant(account: &str) -> &'static Tenant {
    let cluster = ObjectKey::new("tenants", account);
    Box::leak(Box::new(Tenant::Cluster(ClusterTenant::new(cluster))))
}

/// Separate credentials for each account. The account is the tenant's name, or [`ACCOUNT`].
#[derive(Debug, Default)]
pub(crate) struct PerAccount;

#[async_trait::async_trait]
impl CredentialsSource for PerAccount {
    async fn credentials(
        &self,
        tenant: &Tenant,
        _region: &str,
    ) -> Result<Credentials, Unavailable> {
        let account = match tenant {
            Tenant::Controller => ACCOUNT,
            Tenant::Cluster(tenant) => &tenant.cluster.name,
        };
        let (access_key, _) = kubelet_authenticator_test_support::moto::access_key(account);
        let last = account.bytes().last().unwrap_or_default();
        Ok(credentials(last, &access_key))
    }
}

/// Adds the Cluster `one` in `tenant-a` to `store`, with this `spec` in its `AWSCluster`, after everything was read.
pub(crate) fn one_cluster(store: &IdentityStore, spec: &Value) -> ClusterTenant {
    let key = ObjectKey::new("tenant-a", "one");
    let cluster = Cluster {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        infrastructure: Some(ObjectRef {
            kind: "AWSCluster".to_owned(),
            name: key.name.clone(),
        }),
        ..Cluster::default()
    };
    let spec = serde_json::from_value(spec.clone()).unwrap();
    store.put_cluster(key.clone(), Some(Ok(cluster)));
    store.put_infrastructure("AWSCluster", key.clone(), Some(Ok(spec)));
    for source in store.sources() {
        store.read(&source);
    }
    ClusterTenant::new(key)
}

/// A call of [`FakeEc2`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Called {
    pub(crate) key: CredentialsKey,
    pub(crate) region: String,
    pub(crate) query: Query,
    pub(crate) next: Option<String>,
}

impl Called {
    pub(crate) fn ids(&self) -> Vec<&str> {
        match &self.query {
            Query::Ids(ids) => ids.iter().map(String::as_str).collect(),
            Query::Tags(_) => Vec::new(),
        }
    }
}

/// The behavior of EC2 in a region.
#[derive(Debug, Clone)]
pub(crate) enum Fares {
    Well,
    /// EC2 responds after this time.
    Slowly(Duration),
    Hangs,
    Fails(OutageKind),
}

/// A simulated EC2 that contains these instances, which are the same in every region and account.
#[derive(Debug, Default, Clone)]
pub(crate) struct FakeEc2 {
    state: Arc<Mutex<FakeState>>,
}

#[derive(Debug, Default)]
struct FakeState {
    instances: Vec<InstanceFacts>,
    fares: BTreeMap<String, Fares>,
    calls: Vec<Called>,
    page_len: Option<usize>,
}

impl FakeEc2 {
    pub(crate) fn with(instances: impl IntoIterator<Item = InstanceFacts>) -> Self {
        let fake = Self::default();
        fake.knows(instances);
        fake
    }

    pub(crate) fn knows(&self, instances: impl IntoIterator<Item = InstanceFacts>) {
        self.state.lock().unwrap().instances = instances.into_iter().collect();
    }

    pub(crate) fn fares(&self, region: &str, how: Fares) {
        let mut state = self.state.lock().unwrap();
        state.fares.insert(region.to_owned(), how);
    }

    /// Sets the number of instances on a page.
    pub(crate) fn page_len(&self, len: usize) {
        self.state.lock().unwrap().page_len = Some(len);
    }

    pub(crate) fn calls(&self) -> Vec<Called> {
        self.state.lock().unwrap().calls.clone()
    }
}

#[async_trait::async_trait]
impl Describe for FakeEc2 {
    async fn describe(
        &self,
        credentials: &Credentials,
        region: &str,
        query: &Query,
        next: Option<&str>,
    ) -> Result<Page, OutageKind> {
        let (page, fares) = {
            let mut state = self.state.lock().unwrap();
            state.calls.push(Called {
                key: credentials.key,
                region: region.to_owned(),
                query: query.clone(),
                next: next.map(str::to_owned),
            });
            let fares = state.fares.get(region).cloned().unwrap_or(Fares::Well);
            let matching = state.instances.iter().filter(|facts| match query {
                Query::Ids(ids) => ids.contains(&facts.id),
                Query::Tags(tags) => tags
                    .iter()
                    .all(|(key, value)| facts.tags.get(key) == Some(value)),
            });
            let begin: usize = next.map_or(0, |next| next.parse().unwrap());
            let mut rest: Vec<_> = matching.skip(begin).cloned().collect();
            let len = state.page_len.unwrap_or(usize::MAX);
            let more = rest.len() > len;
            rest.truncate(len);
            let page = Page {
                instances: rest,
                next: more.then(|| (begin + len).to_string()),
            };
            (page, fares)
        };
        // The credentials are read in the same way as in the SDK before it signs.
        let provider = credentials.config.credentials_provider().unwrap();
        if provider.provide_credentials().await.is_err() {
            return Err(OutageKind::Credentials(
                "no credentials were found".to_owned(),
            ));
        }
        match fares {
            Fares::Well => Ok(page),
            Fares::Slowly(time) => {
                tokio::time::sleep(time).await;
                Ok(page)
            }
            Fares::Hangs => std::future::pending().await,
            Fares::Fails(outage) => Err(outage),
        }
    }
}
