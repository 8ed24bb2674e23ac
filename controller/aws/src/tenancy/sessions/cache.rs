//! The sessions for all plans, shared by digest.

use std::sync::{Arc, Weak};
use std::time::SystemTime;

use aws_credential_types::provider::SharedCredentialsProvider;
use aws_credential_types::provider::error::CredentialsError as ProviderError;
use aws_credential_types::provider::future::ProvideCredentials as Provided;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{InUse, Lock};
use tokio::time::Instant;

use super::assume::{AssumeRole, Keys, Tokens};
use super::budget::Budget;
use super::error::CredentialsError;
use super::session::{Calls, Origin, Session};
use crate::credentials::{CredentialsKey, Lease};
use crate::tenancy::{DigestKey, Plan, Role, Root, ServiceAccount};

/// The sessions of all plans.
///
/// # Guarantees
///
/// - Plans share a session, link by link, only if their AWS calls are identical.
/// - A session is dropped with the last plan that uses it.
/// - The parameters of a plan's calls can be long, so they are stored once for all regions.
#[derive(Debug)]
pub struct Sessions {
    own: SharedCredentialsProvider,
    calls: Arc<Calls>,
    digest_key: DigestKey,
    shared: InUse<CredentialsKey, Session>,
    /// The roles, keyed by a digest that does not depend on the region.
    roles: InUse<CredentialsKey, Role>,
    /// The service accounts, keyed by a digest that does not depend on the region.
    accounts: InUse<CredentialsKey, ServiceAccount>,
}

/// The credentials of a plan.
#[derive(derive_more::Debug, Clone)]
#[debug("PlanCredentials({key:?})")]
pub struct PlanCredentials {
    /// The identity of the credentials.
    pub key: CredentialsKey,
    session: Arc<Session>,
    tenant: Arc<ObjectKey>,
    /// The region whose STS is called.
    region: Arc<str>,
}

impl Sessions {
    /// Creates an empty cache. `own` provides the controller's own credentials.
    pub fn new(
        own: SharedCredentialsProvider,
        sts: Arc<dyn AssumeRole>,
        tokens: Arc<dyn Tokens>,
        digest_key: DigestKey,
    ) -> Self {
        Self {
            own,
            calls: Arc::new(Calls {
                sts,
                tokens,
                budget: Budget::new(),
            }),
            digest_key,
            shared: InUse::new(Lock::RoleSessions),
            roles: InUse::new(Lock::RoleSessions),
            accounts: InUse::new(Lock::RoleSessions),
        }
    }

    /// Creates the credentials for a plan, which use the STS in `sts_region`. This function does not make a call. Later
    /// calls use the turns of `tenant`.
    pub fn of_plan(&self, plan: &Plan, sts_region: &str, tenant: &ObjectKey) -> PlanCredentials {
        let mut digests = plan.digests(&self.digest_key, sts_region).into_iter();
        let root = digests.next().unwrap_or(CredentialsKey::new([0; 32]));
        let shared = |key: CredentialsKey, origin: &dyn Fn() -> Origin| {
            let new = || Arc::new(Session::new(origin(), sts_region, self.calls.clone()));
            self.shared.get_or_insert_with(key, new)
        };
        let mut key = root;
        let mut session = shared(root, &|| self.origin(plan));
        for ((index, role), digest) in plan.roles.iter().enumerate().zip(digests) {
            let source = session.clone();
            session = shared(digest, &|| {
                // The first digest is the digest of the root.
                let new = || Arc::new(role.clone());
                let role = self.in_any_region(plan, index + 1, &self.roles, &new);
                Origin::Role(role, source.clone())
            });
            key = digest;
        }
        PlanCredentials {
            key,
            session,
            tenant: Arc::new(tenant.clone()),
            region: sts_region.into(),
        }
    }

    /// Replaces the credentials with this key, which AWS rejected in a call that started at `since`. Returns whether
    /// other credentials can exist now.
    pub fn forget(&self, key: CredentialsKey, since: Instant) -> bool {
        let session = self.shared.get(&key);
        session.is_some_and(|session| session.forget(since))
    }

    /// The parameters of this step in the plan, which all regions share. The parameters are needed only for a new
    /// session.
    fn in_any_region<T>(
        &self,
        plan: &Plan,
        step: usize,
        shared: &InUse<CredentialsKey, T>,
        new: &dyn Fn() -> Arc<T>,
    ) -> Arc<T> {
        let digests = plan.digests(&self.digest_key, "");
        match digests.get(step) {
            Some(digest) => shared.get_or_insert_with(*digest, new),
            None => new(),
        }
    }

    fn origin(&self, plan: &Plan) -> Origin {
        match &plan.root {
            Root::Controller => Origin::Controller(self.own.clone()),
            Root::Static(key) => Origin::Static(Keys::new(
                &*key.id,
                key.secret.expose(),
                key.session_token
                    .as_ref()
                    .map(|token| token.expose().clone()),
                None,
                "AWSClusterStaticIdentity",
            )),
            Root::ServiceAccount(account) => {
                let new = || Arc::new((**account).clone());
                Origin::ServiceAccount(self.in_any_region(plan, 0, &self.accounts, &new))
            }
        }
    }

    /// The number of roles and service accounts that sessions use.
    #[cfg(test)]
    pub(crate) fn parameters(&self) -> usize {
        self.roles.count() + self.accounts.count()
    }

    /// The number of sessions that have an owner.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shared.count()
    }
}

impl PlanCredentials {
    /// Returns the credentials.
    ///
    /// # Errors
    ///
    /// Returns the step that failed in this call, or in a recent call.
    pub async fn keys(&self) -> Result<Keys, CredentialsError> {
        self.session.keys_for(&self.tenant).await
    }

    /// Starts a call for the credentials if it is necessary, unless the call must wait for the namespace's share of the
    /// rate. Returns `false` if the call must wait.
    pub fn try_start(&self) -> bool {
        self.session.try_start(&self.tenant)
    }

    /// Returns the account of the credentials.
    ///
    /// # Errors
    ///
    /// Returns the step that failed in this call, or in a recent call.
    pub async fn account(&self) -> Result<String, CredentialsError> {
        self.session.account(&self.tenant, &self.region).await
    }

    /// The region whose STS is called.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Whether both values contain the same credentials and the same STS region.
    pub fn is_same(&self, other: &Self) -> bool {
        self.key == other.key && self.region == other.region
    }

    /// Whether the credentials or their account are unavailable, and AWS is not called because of a pause.
    pub fn pauses(&self) -> bool {
        self.session.pauses(&self.region)
    }

    /// The `Debug` text of the session.
    #[cfg(test)]
    pub(crate) fn shown(&self) -> String {
        format!("{:?}", self.session)
    }

    /// The expiry time of the credentials, and the last failure. This function does not make a call.
    pub fn condition(&self) -> (Option<SystemTime>, Option<CredentialsError>) {
        self.session.condition(&self.region)
    }
}

/// The credentials for a plan, usable as long as another owner holds them.
#[derive(derive_more::Debug, Clone)]
#[debug("WeakCredentials")]
struct WeakCredentials {
    session: Weak<Session>,
    tenant: Arc<ObjectKey>,
}

impl PlanCredentials {
    /// Keeps the credentials alive.
    pub fn lease(&self) -> Lease {
        Lease::Held(self.session.clone())
    }

    /// Creates a provider that returns the credentials as long as they have an owner.
    pub fn provider(&self) -> SharedCredentialsProvider {
        SharedCredentialsProvider::new(WeakCredentials {
            session: Arc::downgrade(&self.session),
            tenant: self.tenant.clone(),
        })
    }
}

impl aws_credential_types::provider::ProvideCredentials for WeakCredentials {
    fn provide_credentials<'a>(&'a self) -> Provided<'a>
    where
        Self: 'a,
    {
        Provided::new(async {
            let session = self.session.upgrade();
            let session =
                session.ok_or_else(|| ProviderError::not_loaded("the session was dropped"))?;
            let keys = session.keys_for(&self.tenant).await;
            keys.map_err(ProviderError::provider_error)
        })
    }
}

#[cfg(test)]
mod tests;
