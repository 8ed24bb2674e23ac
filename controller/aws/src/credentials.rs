//! The credentials for EC2 calls.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{AppName, BehaviorVersion, SdkConfig};
use futures::future::FutureExt as _;
use node_attestation_core::refusal::{NotCalled, Unavailable};
use node_attestation_runtime::capi::ObjectKey;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::proxy::Proxy;

/// The deadline for the SDK's search for credentials and a region. The SDK tries files, the container and instance
/// metadata in order, each with its own deadline.
const LOAD_DEADLINE: Duration = Duration::from_secs(20);

/// The time limit for opening a connection, which normally takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The time limit for a call. EC2 and STS respond within one second, so a retry is faster than a longer wait.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeouts of the SDK's calls.
pub(crate) fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(CALL_TIMEOUT)
        .operation_attempt_timeout(CALL_TIMEOUT)
        .operation_timeout(CALL_TIMEOUT)
        .build()
}

/// The controller's name and version, for the `User-Agent` of the SDK's calls, which AWS `CloudTrail` records.
pub(crate) fn app_name() -> Option<AppName> {
    const NAME: &str = concat!("node-attestation-controller-", env!("CARGO_PKG_VERSION"));
    AppName::new(NAME).ok()
}

/// The owner of instances. EC2 is called with the owner's credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// The controller, which has no Clusters.
    #[default]
    Controller,
    /// A Cluster.
    Cluster(ClusterTenant),
}

impl Tenant {
    /// Returns the Cluster whose share of the call rate includes the call. The key is empty for the controller.
    pub(crate) fn line(&self) -> ObjectKey {
        match self {
            Self::Controller => ObjectKey::new("", ""),
            Self::Cluster(tenant) => tenant.cluster.clone(),
        }
    }
}

/// A Cluster whose identity is resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterTenant {
    /// The Cluster.
    pub cluster: ObjectKey,
    /// The `AWSServiceAccountIdentity` in its `KubeletAuthentication`.
    pub service_account_identity: Option<String>,
}

impl ClusterTenant {
    /// Creates a tenant for the Cluster with this name, with the identity from the Cluster's own objects.
    pub fn new(cluster: ObjectKey) -> Self {
        Self {
            cluster,
            service_account_identity: None,
        }
    }
}

/// Finds the credentials with which the controller describes instances.
///
/// An implementation for several tenants returns separate credentials for each tenant. Batches and caches are separated
/// by [`CredentialsKey`], so that a decision never depends on the result of a different tenant's call.
#[async_trait::async_trait]
pub trait CredentialsSource: fmt::Debug + Send + Sync {
    /// Returns the credentials for the instances of `tenant` in `region`.
    ///
    /// Every request calls this function, so an implementation should respond from memory.
    ///
    /// # Errors
    ///
    /// Returns an error if no credentials exist. This is an outage, and never a reason to deny a node.
    async fn credentials(&self, tenant: &Tenant, region: &str) -> Result<Credentials, Unavailable>;

    /// Drops the session that AWS rejected in a call with these credentials, which started at `since`. Returns whether
    /// another session might exist, so that the caller can retry the call once.
    fn forget_session(&self, _key: CredentialsKey, _since: Instant) -> bool {
        false
    }

    /// Whether this tenant can have instances in the region. The tenant's cluster might be in a different region.
    ///
    /// # Errors
    ///
    /// Returns an error if the objects that specify the region are not current.
    fn may_be_in(&self, _tenant: &Tenant, _region: &str) -> Result<bool, Unavailable> {
        Ok(true)
    }
}

/// A source without credentials, for an [explanation](node_attestation_core::decide::explain): EC2 is [`NotCalled`].
#[derive(Debug, Clone, Copy)]
pub struct NoCredentials;

#[async_trait::async_trait]
impl CredentialsSource for NoCredentials {
    async fn credentials(&self, _: &Tenant, _: &str) -> Result<Credentials, Unavailable> {
        Err(Unavailable::new(NotCalled("EC2")))
    }
}

/// Credentials, and the configuration that the SDK needs to use them.
#[derive(derive_more::Debug, Clone)]
// The output does not contain the configuration, because the configuration shows access keys.
#[debug("Credentials({key:?})")]
pub struct Credentials {
    /// The identity of the credentials.
    pub key: CredentialsKey,
    /// The SDK's configuration: the credentials provider, the HTTP client, and the endpoint, unless a different
    /// endpoint is set. If the credentials change under the same key, they must still belong to the same principal.
    pub config: SdkConfig,
    /// The account of the credentials, if it is known. An instance of another account never belongs to the tenant.
    pub account: Option<String>,
    /// The lease that keeps the credentials usable.
    pub lease: Lease,
}

impl Credentials {
    /// Returns a copy of the credentials that a cache can keep. The cache does not keep access keys and sessions in
    /// memory: they are dropped with the last cluster or request that uses them.
    pub(crate) fn cached(&self) -> Self {
        Self {
            lease: self.lease.downgrade(),
            ..self.clone()
        }
    }
}

/// The lifetime of credentials.
#[derive(derive_more::Debug, Clone, Default)]
pub enum Lease {
    /// The credentials are valid as long as the process runs.
    #[default]
    Endless,
    /// The credentials are valid as long as this value exists.
    #[debug("Held")]
    Held(Arc<dyn Any + Send + Sync>),
    /// The credentials are valid as long as another owner holds this value.
    #[debug("OfOthers")]
    OfOthers(Weak<dyn Any + Send + Sync>),
}

impl Lease {
    fn downgrade(&self) -> Self {
        match self {
            Self::Held(kept) => Self::OfOthers(Arc::downgrade(kept)),
            Self::Endless | Self::OfOthers(_) => self.clone(),
        }
    }

    /// Whether every owner has dropped the credentials.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Endless | Self::Held(_) => false,
            Self::OfOthers(kept) => kept.strong_count() == 0,
        }
    }
}

/// The identity of credentials: a digest of their source, which is never only a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredentialsKey([u8; 32]);

impl CredentialsKey {
    /// Creates a key from this digest.
    pub fn new(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl fmt::Debug for CredentialsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, ..] = self.0;
        write!(f, "CredentialsKey({first:02x}{second:02x}..)")
    }
}

/// The controller's own credentials for every account, from the SDK's default chain: environment, profile files, web
/// identity (IRSA), container (EKS Pod Identity), instance profile.
///
/// The credential sources "process" and IAM Identity Center are not compiled in.
#[derive(derive_more::Debug, Default)]
#[debug("DefaultChain")]
pub struct DefaultChain {
    proxy: Proxy,
    loaded: OnceCell<SdkConfig>,
}

impl DefaultChain {
    /// The key for the controller's own credentials, which always belong to the same principal.
    const KEY: CredentialsKey = CredentialsKey([0; 32]);

    /// Creates the chain, which connects to AWS through this proxy. The search for credentials starts with the first
    /// request.
    pub fn new(proxy: Proxy) -> Self {
        Self {
            proxy,
            loaded: OnceCell::new(),
        }
    }
}

#[async_trait::async_trait]
impl CredentialsSource for DefaultChain {
    async fn credentials(&self, _: &Tenant, _region: &str) -> Result<Credentials, Unavailable> {
        let load = async {
            let http_client = self.proxy.http_client().map_err(Unavailable::new)?;
            let mut config =
                aws_config::defaults(BehaviorVersion::latest()).http_client(http_client);
            if let Some(name) = app_name() {
                config = config.app_name(name);
            }
            Ok::<_, Unavailable>(config.load().boxed().await)
        };
        let load = load.boxed();
        let loaded = self.loaded.get_or_try_init(|| load);
        let config = tokio::time::timeout(LOAD_DEADLINE, loaded)
            .await
            .map_err(|_| Unavailable::new("no AWS configuration was found in time"))??;
        Ok(Credentials {
            key: Self::KEY,
            config: config.clone(),
            account: None,
            lease: Lease::Endless,
        })
    }
}
