//! The credentials of each tenant: the tenant's identity from the current objects, and the sessions for its roles.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_ec2::config::IdentityCache;
use kubelet_attestation::ensure;
use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::clock::jittered;
use node_attestation_runtime::shared::{Lock, Shared, visit};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::{Instant, sleep};

use crate::credentials::{ClusterTenant, Credentials, CredentialsKey, CredentialsSource, Tenant};
use crate::partition;
use crate::tenancy::sessions::{
    AssumeRole, CredentialsError, FailureKind, PlanCredentials, Sessions, Tokens,
};
use crate::tenancy::store::{IdentityError, IdentityStore};
use crate::tenancy::{DigestKey, Plan};

mod accounts;
mod in_use;

use self::accounts::{Accounts, mismatch};
use self::in_use::ClusterSessions;

/// The interval for checking whether AWS has accepted the credentials of a cluster. Later checks do not make a call.
const TRY: Duration = Duration::from_secs(30);

/// The reason why a tenant has no credentials.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// The tenant's identity cannot be determined.
    #[error("cannot determine the AWS identity of {cluster}")]
    Identity {
        /// The Cluster.
        cluster: ObjectKey,
        /// The cause.
        source: IdentityError,
    },
    /// The credentials of the tenant's identity are not available.
    #[error("no AWS credentials are available for {cluster}")]
    Credentials {
        /// The Cluster.
        cluster: ObjectKey,
        /// The cause.
        source: CredentialsError,
    },
}

/// The clients that all tenants' credentials use.
#[derive(derive_more::Debug, Clone)]
pub struct TenantClients {
    /// The controller's own credentials, and its connection to AWS.
    pub own: Arc<dyn CredentialsSource>,
    /// The STS client.
    pub sts: Arc<dyn AssumeRole>,
    /// The source of service account tokens.
    pub tokens: Arc<dyn Tokens>,
    /// The STS region. `None` for the cluster's region.
    pub sts_region: Option<String>,
}

/// The credentials of each tenant.
///
/// # Guarantees
///
/// - Tenants share a session only if they would create it with the same call.
/// - A change to an identity, a Secret or a label takes effect with the next request.
/// - An outage of the management cluster does not end a session.
/// - After the first account of a cluster is known, credentials for a different account are not used.
#[derive(Debug)]
pub struct TenantCredentials {
    clients: TenantClients,
    identities: Arc<IdentityStore>,
    digest_key: DigestKey,
    sessions: OnceCell<Sessions>,
    /// The sessions of each cluster, which are kept as long as the cluster exists.
    clusters: Shared<BTreeMap<ObjectKey, ClusterSessions>>,
    accounts: Accounts,
}

/// The reason for the calls with the credentials of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Request,
    /// No request needs the credentials. The calls must not delay requests for other clusters of the namespace.
    Try,
}

/// The result of calls with the credentials of a cluster's identity, which AWS accepted.
struct Accepted {
    /// The controller's own configuration.
    own: Credentials,
    session: PlanCredentials,
    account: String,
}

impl TenantCredentials {
    /// Creates the credentials for the tenants in `identities`, and a receiver for each cluster's first account.
    pub fn new(
        clients: TenantClients,
        identities: Arc<IdentityStore>,
        digest_key: DigestKey,
    ) -> (Self, mpsc::UnboundedReceiver<(ObjectKey, String)>) {
        // The channel contains at most one entry for each cluster, until the account is stored in the API server.
        let (first_accounts, to_write) = mpsc::unbounded_channel();
        let credentials = Self {
            clients,
            identities,
            digest_key,
            sessions: OnceCell::new(),
            clusters: Shared::new(Lock::TenantSessions, BTreeMap::new()),
            accounts: Accounts::new(first_accounts),
        };
        (credentials, to_write)
    }

    /// Updates the account from the annotation on a `KubeletAuthentication`. An administrator who removes the
    /// annotation accepts a different account.
    pub fn read_pin(&self, cluster: &ObjectKey, account: Option<&str>) {
        self.accounts.read_pin(cluster, account);
    }

    async fn of_cluster(
        &self,
        tenant: &ClusterTenant,
        region: &str,
    ) -> Result<Credentials, Unavailable> {
        let cluster = &tenant.cluster;
        let Accepted {
            own,
            session,
            account,
        } = self.accepted(tenant, region, Cause::Request).await?;
        let checked = self.accounts.check(cluster, &account);
        checked.map_err(|error| unresolved(cluster, error.into()))?;
        let made = || {
            let config = own.config.clone().into_builder();
            let config = config
                .identity_cache(IdentityCache::no_cache())
                .credentials_provider(session.provider());
            Credentials {
                key: session.key,
                config: config.build(),
                account: Some(account.clone()),
                lease: session.lease(),
            }
        };
        let known = self.clusters.write(|clusters| {
            let known = clusters.get_mut(cluster)?;
            known.credentials(&session, made)
        });
        // During the calls, a concurrent request might have found a different identity.
        Ok(known.unwrap_or_else(made))
    }

    /// Gets the credentials of a cluster's identity from AWS, and their account.
    async fn accepted(
        &self,
        tenant: &ClusterTenant,
        region: &str,
        cause: Cause,
    ) -> Result<Accepted, Unavailable> {
        let cluster = &tenant.cluster;
        let resolved = self.identities.resolve(tenant);
        let plan = resolved.map_err(|source| self.without_identity(cluster, source))?;
        let checked = plan.check_partition(region);
        checked.map_err(|error| unresolved(cluster, error.into()))?;
        let own = self
            .clients
            .own
            .credentials(&Tenant::Controller, region)
            .await?;
        let sessions = self.sessions(&own).await?;
        let session = sessions.of_plan(&plan, self.sts_region(region), cluster);
        self.keep(cluster, &session, &plan);
        let unusable = |source| {
            Unavailable::new(TenantError::Credentials {
                cluster: cluster.clone(),
                source,
            })
        };
        ensure!(
            cause == Cause::Request || session.try_start(),
            Unavailable::new(
                "the namespace has reached its limit on STS calls; the controller retries later"
            )
        );
        // An account is recorded only after AWS has issued credentials for it.
        session.keys().await.map_err(unusable)?;
        let account = session.account().await.map_err(unusable)?;
        self.accounts.report(cluster, session.key, &account);
        Ok(Accepted {
            own,
            session,
            account,
        })
    }

    /// Tries the credentials of a cluster's identity at intervals, before the first request needs them. Never returns.
    ///
    /// AWS is called until it has accepted the credentials of an identity once, and again for another identity. After a
    /// failure, the session pauses the calls. If the namespace has no calls left, a later attempt makes the call. The
    /// first account is not recorded, because no instance has used it.
    pub async fn keep_trying(&self, tenant: &ClusterTenant, regions: &[String]) {
        loop {
            self.try_out(tenant, regions).await;
            sleep(jittered(TRY)).await;
        }
    }

    async fn try_out(&self, tenant: &ClusterTenant, regions: &[String]) {
        let cluster = &tenant.cluster;
        let Ok(plan) = self.identities.resolve(tenant) else {
            return;
        };
        let plan = self.digest(&plan);
        let is_accepted = |known: &ClusterSessions| known.is_accepted(plan.as_ref());
        let is_tried = self
            .clusters
            .read(|clusters| clusters.get(cluster).is_some_and(is_accepted));
        if is_tried {
            return;
        }
        let Some(region) = self.region_of_tries(cluster, regions) else {
            return;
        };
        // The condition reports a failure.
        let accepted = self.accepted(tenant, &region, Cause::Try).await;
        if let Ok(Accepted { session, .. }) = accepted {
            self.clusters.write(|clusters| {
                let known = clusters.get_mut(cluster);
                known.is_some_and(|known| known.accept(&session))
            });
        }
    }

    /// The region whose STS is also called for requests. `None` if the cluster can have instances in several regions
    /// with separate STS.
    fn region_of_tries(&self, cluster: &ObjectKey, regions: &[String]) -> Option<String> {
        let own = self.identities.region(cluster);
        let only = <&[String; 1]>::try_from(regions);
        let only = only.ok().map(|[region]| region);
        own.or_else(|| only.or(self.clients.sts_region.as_ref()).cloned())
    }

    /// Whether AWS has accepted credentials of this cluster. This function does not make a call.
    pub fn are_accepted(&self, cluster: &ObjectKey) -> bool {
        self.clusters.read(|clusters| {
            clusters
                .get(cluster)
                .is_some_and(ClusterSessions::has_accepted)
        })
    }

    /// Keeps the cluster's current session, and its sessions for the same plan in other regions.
    fn keep(&self, cluster: &ObjectKey, session: &PlanCredentials, plan: &Plan) {
        let is_in_use = self.clusters.write(|clusters| {
            let known = clusters.get_mut(cluster);
            known.is_some_and(|known| known.touch(session))
        });
        if is_in_use {
            return;
        }
        let plan = self.digest(plan);
        self.clusters.write(|clusters| {
            let known = clusters.entry(cluster.clone()).or_default();
            known.keep(session, plan);
        });
    }

    /// The digest of a plan, which does not depend on the region. Computed without holding a lock, because a plan can
    /// be long.
    fn digest(&self, plan: &Plan) -> Option<CredentialsKey> {
        visit();
        plan.digests(&self.digest_key, "").pop()
    }

    /// The error for a cluster whose identity cannot be determined. If the cluster has no identity, its sessions are
    /// paused.
    fn without_identity(&self, cluster: &ObjectKey, source: IdentityError) -> Unavailable {
        let has_none = match &source {
            IdentityError::Unresolved(_)
            | IdentityError::ClusterNotFound(_)
            | IdentityError::ClusterUnreadable { .. }
            | IdentityError::TooManySecrets(_)
            | IdentityError::TooManyObjects { .. } => true,
            IdentityError::NotRead(_)
            | IdentityError::WatchBroken(_)
            | IdentityError::WatchInterrupted(_) => false,
        };
        if has_none {
            self.clusters.write(|clusters| {
                if let Some(known) = clusters.get_mut(cluster) {
                    known.leave();
                }
            });
        }
        unresolved(cluster, source)
    }

    async fn sessions(&self, own: &Credentials) -> Result<&Sessions, Unavailable> {
        let TenantClients { sts, tokens, .. } = &self.clients;
        let make = async || {
            let provider = own.config.credentials_provider();
            let provider =
                provider.ok_or_else(|| Unavailable::new("the SDK has no credential chain"))?;
            Ok::<_, Unavailable>(Sessions::new(
                provider,
                sts.clone(),
                tokens.clone(),
                self.digest_key.clone(),
            ))
        };
        self.sessions.get_or_try_init(make).await
    }

    /// The operator's region, if it is in the same partition as the cluster's region. Otherwise, the cluster's region.
    fn sts_region<'a>(&'a self, region: &'a str) -> &'a str {
        let partition = |region: &str| partition::of_region(region).map(|partition| partition.name);
        let home = self.clients.sts_region.as_deref();
        home.filter(|home| partition(home) == partition(region))
            .unwrap_or(region)
    }

    /// Drops deleted clusters, and sessions that have no other owner. Has no effect if the list of clusters is unknown.
    pub fn forget_gone(&self) {
        let Some(clusters) = self.identities.clusters() else {
            return;
        };
        let keeps = |cluster: &ObjectKey, known: &mut ClusterSessions| {
            clusters.contains(cluster) && known.prune()
        };
        self.clusters.retain(|all| all, keeps);
        self.accounts.retain(|cluster| clusters.contains(cluster));
    }

    /// Whether an instance in this region can belong to the cluster. An `AWSCluster` has one region.
    ///
    /// # Errors
    ///
    /// Returns an error if the known objects do not allow the region, but the cluster's identity is not resolved or the
    /// objects could have changed.
    pub fn accepts_region(
        &self,
        tenant: &ClusterTenant,
        region: &str,
    ) -> Result<bool, Unavailable> {
        let accepted = self.identities.accepts_region(tenant, region);
        accepted.map_err(|source| self.without_identity(&tenant.cluster, source))
    }

    /// The condition about a tenant's identity. This function does not make a call.
    pub fn identity_report(&self, tenant: &ClusterTenant) -> ConditionReport {
        let resolved = self.identities.resolve(tenant);
        let pin = self.accounts.of_cluster(&tenant.cluster);
        let resolved = resolved.and_then(|plan| {
            let account = self.known_account(&plan, pin.last);
            if let (Some(pinned), Some(account)) = (&pin.account, &account) {
                mismatch(pinned, account)?;
            }
            Ok((plan, account.or(pin.account)))
        });
        let (holds, reason, message) = match resolved {
            // The cluster has no identity, but a controller option allows the fallback.
            Ok((plan, account)) if plan.is_fallback() => (
                ConditionStatus::Unknown,
                reason::CONTROLLER_IDENTITY,
                format!(
                    "no object specifies an AWS identity for the cluster: {}",
                    describe(&plan, account.as_deref())
                ),
            ),
            Ok((plan, account)) => (
                ConditionStatus::True,
                reason::RESOLVED,
                describe(&plan, account.as_deref()),
            ),
            Err(error) => match error.reason() {
                Some(reason) => (ConditionStatus::False, reason, error.to_string()),
                None => (ConditionStatus::Unknown, reason::PENDING, error.to_string()),
            },
        };
        ConditionReport {
            of: conditions::AWS_IDENTITY_RESOLVED,
            holds,
            reason,
            message,
        }
    }

    /// The account of a plan, either from the plan itself, or as AWS last reported it for these credentials.
    fn known_account(&self, plan: &Plan, last: Option<(CredentialsKey, String)>) -> Option<String> {
        if let Some(account) = plan.account() {
            return Some(account.to_owned());
        }
        // For credentials without a role, only AWS can report the account. Their digest does not depend on the region.
        let key = self.digest(plan)?;
        last.and_then(|(of, account)| (of == key).then_some(account))
    }

    /// The condition about a failure of a tenant's credentials. `None` if no failure exists. This function does not
    /// make a call.
    pub fn credentials_report(&self, cluster: &ObjectKey) -> Option<ConditionReport> {
        let failure = self
            .clusters
            .read(|clusters| clusters.get(cluster)?.failure())?;
        let holds = match &failure.kind {
            FailureKind::Throttled(_) | FailureKind::Unavailable(_) | FailureKind::Expired => {
                ConditionStatus::Unknown
            }
            FailureKind::Refused { .. }
            | FailureKind::ActionDenied { .. }
            | FailureKind::NoneOfOurOwn(_)
            | FailureKind::NoToken(_) => ConditionStatus::False,
        };
        Some(ConditionReport {
            of: conditions::AWS_CREDENTIALS_READY,
            holds,
            reason: failure.kind.reason(),
            message: failure.to_string(),
        })
    }

    /// The condition about other Clusters with the same name and account. It does not name them, because they can belong
    /// to other tenants. This function does not make a call.
    pub fn name_report(&self, cluster: &ObjectKey) -> ConditionReport {
        self.accounts.name_report(cluster)
    }

    /// The expiry time of a cluster's credentials. This function does not make a call.
    pub fn expiry(&self, cluster: &ObjectKey) -> Option<SystemTime> {
        self.clusters
            .read(|clusters| clusters.get(cluster)?.expiry())
    }
}

fn unresolved(cluster: &ObjectKey, source: IdentityError) -> Unavailable {
    Unavailable::new(TenantError::Identity {
        cluster: cluster.clone(),
        source,
    })
}

/// The identity chain, the account, and the warnings.
fn describe(plan: &Plan, account: Option<&str>) -> String {
    let chain: Vec<String> = plan
        .chain
        .iter()
        .map(|link| link.identity.to_string())
        .collect();
    let mut message = if chain.is_empty() {
        let roles: Vec<String> = plan.roles.iter().map(|role| role.arn.to_string()).collect();
        match roles.as_slice() {
            [] => "EC2 is called with the controller's own credentials".to_owned(),
            roles => format!("EC2 is called as {}", roles.join(" over ")),
        }
    } else {
        format!("EC2 is called as {}", chain.join(" over "))
    };
    if let Some(account) = account {
        message.push_str(", account ");
        message.push_str(account);
    }
    for warning in &plan.warnings {
        message.push_str("; ");
        message.push_str(&warning.to_string());
    }
    message
}

#[async_trait::async_trait]
impl CredentialsSource for TenantCredentials {
    async fn credentials(&self, tenant: &Tenant, region: &str) -> Result<Credentials, Unavailable> {
        match tenant {
            Tenant::Controller => self.clients.own.credentials(tenant, region).await,
            Tenant::Cluster(tenant) => self.of_cluster(tenant, region).await,
        }
    }

    fn forget_session(&self, key: CredentialsKey, since: Instant) -> bool {
        let sessions = self.sessions.get();
        sessions.is_some_and(|sessions| sessions.forget(key, since))
    }

    fn may_be_in(&self, tenant: &Tenant, region: &str) -> Result<bool, Unavailable> {
        match tenant {
            Tenant::Controller => Ok(true),
            Tenant::Cluster(tenant) => self.accepts_region(tenant, region),
        }
    }
}

#[cfg(test)]
mod tests;
