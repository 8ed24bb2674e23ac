//! The credentials of one link in a chain, and their renewal.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::provider::{ProvideCredentials as _, SharedCredentialsProvider};
use futures::future::FutureExt as _;
use kubelet_attestation::errors::error_chain;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::clock::now;
use node_attestation_runtime::shared::{Lock, Shared};
use tokio::time::{Instant, timeout};

use super::assume::{AssumeRole, Issued, Keys, Tokens};
use super::budget::Budget;
use super::error::{CredentialsError, FailureKind};
use super::state::{AccountLookup, Answer, Held, Rejection, Renewal, State};
use crate::error_codes::causes;
use crate::tenancy::{Role, ServiceAccount};

/// The deadline for a whole renewal, including the renewal of its source and the wait for its turn. Without this
/// deadline, a request would wait for a call that hangs.
const FETCH: Duration = Duration::from_secs(45);

/// The origin of a link's credentials.
#[derive(Debug)]
pub(super) enum Origin {
    /// The controller's own credentials.
    Controller(SharedCredentialsProvider),
    /// An access key.
    Static(Keys),
    /// A service account token.
    ServiceAccount(Arc<ServiceAccount>),
    /// A role, which the previous link assumes.
    Role(Arc<Role>, Arc<Session>),
}

/// The clients and the call budget for all sessions.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) sts: Arc<dyn AssumeRole>,
    pub(super) tokens: Arc<dyn Tokens>,
    pub(super) budget: Budget,
}

/// The credentials of one link.
///
/// # Guarantees
///
/// - Concurrent requests share one call. A canceled request does not cancel the call.
/// - Credentials are renewed after three quarters of their lifetime. Even if renewals fail, the credentials are
///   returned until one minute before they expire.
/// - A pause follows each failure. Each further failure doubles the pause.
/// - If the STS in one region does not return the account of the credentials, the failure affects only that region. The
///   account is valid in all regions.
/// - Credentials that AWS rejects are replaced, but at most once in five minutes. If no other credentials are
///   available, the old credentials remain in use, because a rejection might be limited to one region. The controller's
///   own credentials remain in use until new credentials are available, because all tenants use them.
#[derive(Debug)]
pub(super) struct Session {
    name: Arc<str>,
    origin: Origin,
    region: String,
    calls: Arc<Calls>,
    state: Shared<State>,
}

impl Session {
    pub(super) fn new(origin: Origin, region: &str, calls: Arc<Calls>) -> Self {
        let name = match &origin {
            Origin::Controller(_) => "the controller's own credentials".into(),
            Origin::Static(keys) => format!("the access key {}", keys.access_key_id()).into(),
            Origin::ServiceAccount(account) => account.role.arn.to_string().into(),
            Origin::Role(role, _) => role.arn.to_string().into(),
        };
        Self {
            name,
            origin,
            region: region.to_owned(),
            calls,
            state: Shared::new(Lock::Session, State::default()),
        }
    }

    /// Returns the credentials. If a call is necessary, first waits for `tenant`'s share of the calls.
    pub(super) async fn keys_for(self: &Arc<Self>, tenant: &ObjectKey) -> Answer {
        if self.calls_sts() && self.needs_call() {
            // While this request waits for its turn, another request can start the call.
            let share = self.calls.budget.take(tenant, || self.needs_call());
            share.await;
        }
        self.keys(tenant).await
    }

    /// Starts a call for the credentials if it is necessary and `tenant`'s share has a call left. Returns whether the
    /// credentials are available without a wait for the share.
    pub(super) fn try_start(self: &Arc<Self>, tenant: &ObjectKey) -> bool {
        if !self.calls_sts() || !self.needs_call() {
            return true;
        }
        if !self.calls.budget.try_take(tenant) {
            return false;
        }
        self.state.write(|state| {
            if state.known().is_none() {
                drop(self.renew(state, tenant));
            }
        });
        true
    }

    /// Whether new credentials require an STS call, which takes a part of the namespace's share.
    fn calls_sts(&self) -> bool {
        matches!(self.origin, Origin::ServiceAccount(_) | Origin::Role(..))
    }

    fn needs_call(&self) -> bool {
        self.state
            .read(|state| state.renewal().is_none() && state.known().is_none())
    }

    async fn keys(self: &Arc<Self>, tenant: &ObjectKey) -> Answer {
        let known = self.state.write(|state| {
            let Some(known) = state.known() else {
                return Err(self.renew(state, tenant));
            };
            // If no call is left, a later request starts the renewal.
            if state.is_due() && (!self.calls_sts() || self.calls.budget.try_take(tenant)) {
                drop(self.renew(state, tenant));
            }
            Ok(known)
        });
        match known {
            Ok(known) => known,
            Err(pending) => pending.await,
        }
    }

    /// Starts a renewal, whose calls use the turns of `tenant`, or joins the renewal that is in progress.
    fn renew(self: &Arc<Self>, state: &mut State, tenant: &ObjectKey) -> Renewal {
        if let Some(renewal) = state.renewal() {
            return renewal.clone();
        }
        let (session, tenant) = (self.clone(), tenant.clone());
        let renewal = async move {
            // A panic counts as one failure, and does not stop the session.
            let answer = AssertUnwindSafe(timeout(FETCH, session.fetch(&tenant))).catch_unwind();
            let answer = match answer.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(session.failure("no response in time")),
                Err(_) => Err(session.failure("the call ended without a response")),
            };
            session.state.write(|state| state.settle(answer))
        };
        let ended = self.failure("the call ended without a response");
        // The renewal runs in a separate task, so that it continues after the first requester stops.
        let renewal = tokio::spawn(renewal).map(move |done| done.unwrap_or(Err(ended)));
        let renewal = renewal.boxed().shared();
        state.begin(renewal.clone());
        renewal
    }

    fn failure(&self, detail: &str) -> CredentialsError {
        CredentialsError {
            step: self.name.clone(),
            kind: FailureKind::Unavailable(detail.to_owned()),
        }
    }

    async fn fetch(&self, tenant: &ObjectKey) -> Result<Held, CredentialsError> {
        let failed = |kind| CredentialsError {
            step: self.name.clone(),
            kind,
        };
        let Calls {
            sts,
            tokens,
            budget,
        } = &*self.calls;
        let issued = match &self.origin {
            Origin::Controller(provider) => {
                let keys = provider.provide_credentials().await;
                let keys =
                    keys.map_err(|error| failed(FailureKind::NoneOfOurOwn(causes(&error))))?;
                return Ok(Held::of(keys, Instant::now()));
            }
            Origin::Static(keys) => return Ok(Held::of(keys.clone(), Instant::now())),
            Origin::ServiceAccount(account) => {
                let token = tokens.token(account).await;
                let token =
                    token.map_err(|error| failed(FailureKind::NoToken(error_chain(&error))))?;
                budget.of_all(tenant).await;
                sts.assume_role_with_web_identity(&token, &account.role, &self.region)
                    .await
            }
            Origin::Role(role, source) => {
                let keys = Box::pin(source.keys(tenant)).await?;
                budget.of_all(tenant).await;
                let began = Instant::now();
                let issued = sts.assume_role(&keys, role, &self.region).await;
                let is_refused = issued.as_ref().is_err_and(FailureKind::is_of_session);
                if is_refused && source.forget(began) {
                    let keys = Box::pin(source.keys(tenant)).await?;
                    budget.of_all(tenant).await;
                    sts.assume_role(&keys, role, &self.region).await
                } else {
                    issued
                }
            }
        };
        let Issued { keys, expires } = issued.map_err(failed)?;
        if expires <= now() {
            return Err(failed(FailureKind::Expired));
        }
        Ok(Held::of(keys, Instant::now()).expiring_at(expires))
    }

    /// Replaces credentials that AWS rejected in a call that started at `since`, unless the credentials are newer.
    /// Returns whether other credentials can exist now.
    pub(super) fn forget(self: &Arc<Self>, since: Instant) -> bool {
        // An access key changes only with its Secret.
        if matches!(self.origin, Origin::Static(_)) {
            return false;
        }
        self.state.write(|state| match state.rejected(since) {
            Rejection::Former => true,
            Rejection::Endured => false,
            // All tenants use the controller's own credentials, so the credentials remain in use during the renewal.
            Rejection::Current if matches!(self.origin, Origin::Controller(_)) => {
                // This renewal does not call STS.
                let no_cluster = ObjectKey::new("", "");
                drop(self.renew(state, &no_cluster));
                false
            }
            Rejection::Current => {
                state.withdraw();
                true
            }
        })
    }

    /// Returns the account of the credentials: the account in the role, or the result of one STS call in this region.
    pub(super) async fn account(
        self: &Arc<Self>,
        tenant: &ObjectKey,
        region: &str,
    ) -> Result<String, CredentialsError> {
        match &self.origin {
            Origin::Role(role, _) => return Ok(role.arn.account().to_owned()),
            Origin::ServiceAccount(account) => return Ok(account.role.arn.account().to_owned()),
            Origin::Controller(_) | Origin::Static(_) => {}
        }
        let turn = match self.state.write(|state| state.account.look_up(region)) {
            AccountLookup::Known(known) => return known,
            AccountLookup::Turn(turn) => turn,
        };
        // The namespace's share is taken before the turn, because other tenants can wait for the turn.
        let is_unknown = |state: &State| state.account.known(region).is_none();
        let needs_call = || turn.try_lock().is_ok() && self.state.read(is_unknown);
        self.calls.budget.take(tenant, needs_call).await;
        // A request that waited for the turn uses the result of the previous request.
        let _turn = turn.lock().await;
        if let Some(known) = self.state.read(|state| state.account.known(region)) {
            return known;
        }
        let answer = self.ask_account(tenant, region).await;
        self.state
            .write(|state| state.account.settle(region, answer))
    }

    async fn ask_account(
        self: &Arc<Self>,
        tenant: &ObjectKey,
        region: &str,
    ) -> Result<String, CredentialsError> {
        let keys = self.keys_for(tenant).await?;
        self.calls.budget.of_all(tenant).await;
        let account = self.calls.sts.account(&keys, region).await;
        account.map_err(|kind| CredentialsError {
            step: self.name.clone(),
            kind,
        })
    }

    /// Whether the credentials, or their account in this region, are unavailable because of a pause. An access key
    /// never pauses, because it changes only with its Secret.
    pub(super) fn pauses(&self, region: &str) -> bool {
        let pauses = self.state.read(|state| {
            let account = || state.account.known(region);
            state.known().is_some_and(|known| known.is_err())
                || account().is_some_and(|known| known.is_err())
        });
        pauses && !matches!(self.origin, Origin::Static(_))
    }

    /// The expiry time of the credentials, and the last failure of the credentials or of the account lookup in this
    /// region. This function does not make a call.
    pub(super) fn condition(&self, region: &str) -> (Option<SystemTime>, Option<CredentialsError>) {
        self.state.read(|state| state.condition(region))
    }
}
