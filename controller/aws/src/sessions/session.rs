//! The credentials of one link in a chain, and their renewal.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_credential_types::provider::{ProvideCredentials as _, SharedCredentialsProvider};
use futures::future::{BoxFuture, FutureExt as _, Shared as SharedFuture};
use kubelet_attestation::backoff::Backoff;
use node_attestation_core::time::until;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::clock::{jittered, now};
use node_attestation_runtime::shared::{Lock, Shared, Turnstile, visit};
use tokio::time::{Instant, timeout};

use super::assume::{AssumeRole, Issued, Keys, Tokens};
use super::budget::Budget;
use super::error::{CredentialsError, FailureKind};
use crate::error_codes::causes;
use crate::tenancy::{Role, ServiceAccount};

/// The minimum remaining lifetime of returned credentials, because a call that uses them must end before they expire.
const MARGIN: Duration = Duration::from_mins(1);

/// The deadline for a whole renewal, including the renewal of its source and the wait for its turn, so that no request
/// waits for a call that hangs.
const FETCH: Duration = Duration::from_secs(45);

/// The pauses after a refusal, because the response changes only after an administrator makes a change.
const REFUSED: Backoff = Backoff {
    first: Duration::from_secs(30),
    longest: Duration::from_mins(10),
};

/// The pauses after an outage.
const OUTAGE: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_mins(5),
};

/// The maximum number of regions, which is more than the number of AWS regions. At the limit, regions that are not in a
/// pause are removed.
const MAX_REGIONS: usize = 64;

/// The minimum time between two replacements of a session. If AWS also rejects the next session, the session is not the
/// cause.
const FORGOTTEN_ONCE: Duration = Duration::from_mins(5);

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
/// - Credentials are renewed after three quarters of their lifetime. Even if renewals fail, they are returned until one
///   minute before they expire.
/// - A pause follows each failure. Each further failure doubles the pause.
/// - If the STS in one region does not return the account of the credentials, the failure affects only that region. The
///   account is valid in all regions.
/// - Credentials that AWS rejects are replaced, but at most once in five minutes. If no other credentials are
///   available, the old credentials remain in use, because a rejection can be specific to one region. The controller's
///   own credentials remain in use until new credentials are available, because all tenants use them.
#[derive(Debug)]
pub(super) struct Session {
    name: Arc<str>,
    origin: Origin,
    region: String,
    calls: Arc<Calls>,
    state: Shared<State>,
}

type Answer = Result<Keys, CredentialsError>;

#[derive(Debug, Default)]
struct State {
    held: Option<Held>,
    /// The credentials that AWS rejected. Set until new credentials are available or the renewal fails.
    refused: Option<Held>,
    failed: Option<Failed>,
    pending: Option<SharedFuture<BoxFuture<'static, Answer>>>,
    account: Option<String>,
    /// The regions whose STS was called for the account. Cleared after one of them returns the account.
    asked: HashMap<String, Asked>,
    /// The last time at which credentials were dropped.
    forgotten: Option<Instant>,
}

/// A region whose STS was called for the account.
#[derive(Debug, Default)]
struct Asked {
    /// The turn to call STS. All callers wait for the result of the holder's call.
    turn: Arc<Turnstile<()>>,
    failed: Option<Failed>,
}

#[derive(Debug, Clone)]
struct Held {
    keys: Keys,
    since: Instant,
    expires: Option<SystemTime>,
    /// The time of the renewal. `None` for credentials that do not expire.
    renew_at: Option<Instant>,
    /// The time after which the credentials are no longer returned.
    end: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Failed {
    error: CredentialsError,
    pause: Duration,
    until: Instant,
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

    /// Whether new credentials require an STS call, which takes a part of the namespace's share.
    fn calls_sts(&self) -> bool {
        matches!(self.origin, Origin::ServiceAccount(_) | Origin::Role(..))
    }

    fn needs_call(&self) -> bool {
        self.state
            .read(|state| state.pending.is_none() && state.known().is_none())
    }

    async fn keys(self: &Arc<Self>, tenant: &ObjectKey) -> Answer {
        let known = self.state.write(|state| {
            let Some(known) = state.known() else {
                return Err(self.renew(state, tenant));
            };
            let held = state.held.as_ref();
            let is_due = held.is_some_and(|held| held.is_due(Instant::now()));
            let is_over = state.failed.as_ref().is_none_or(Failed::is_over);
            let begins = is_due && is_over && state.pending.is_none();
            // If no call is left, a later request starts the renewal.
            if begins && (!self.calls_sts() || self.calls.budget.try_take(tenant)) {
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
    fn renew(
        self: &Arc<Self>,
        state: &mut State,
        tenant: &ObjectKey,
    ) -> SharedFuture<BoxFuture<'static, Answer>> {
        if let Some(pending) = &state.pending {
            return pending.clone();
        }
        let (session, tenant) = (self.clone(), tenant.clone());
        let renewal = async move {
            // A panic counts as one failure, and does not stop the session.
            let answer = AssertUnwindSafe(timeout(FETCH, session.fetch(&tenant))).catch_unwind();
            let answer = match answer.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(session.failure("no answer in time")),
                Err(_) => Err(session.failure("the call ended early")),
            };
            session.settle(answer)
        };
        let ended = self.failure("the call ended early");
        // The renewal runs in a separate task, so that it continues after the first requester stops.
        let renewal = tokio::spawn(renewal).map(move |done| done.unwrap_or(Err(ended)));
        let pending = renewal.boxed().shared();
        state.pending = Some(pending.clone());
        pending
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
                let token = token.map_err(|why| failed(FailureKind::NoToken(why)))?;
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
        Ok(Held {
            expires: Some(expires),
            ..Held::of(keys, Instant::now())
        })
    }

    fn settle(&self, answer: Result<Held, CredentialsError>) -> Answer {
        self.state.write(|state| {
            state.pending = None;
            match answer {
                Ok(held) => {
                    let keys = held.keys.clone();
                    state.held = Some(held);
                    state.refused = None;
                    state.failed = None;
                    Ok(keys)
                }
                Err(error) => {
                    state.failed = Some(Failed::after(state.failed.as_ref(), error.clone()));
                    if let Some(refused) = state.refused.take() {
                        state.held.get_or_insert(refused);
                    }
                    state.known().unwrap_or(Err(error))
                }
            }
        })
    }

    /// Replaces credentials that AWS rejected in a call that started at `since`, unless the credentials are newer.
    /// Returns whether other credentials can exist now.
    pub(super) fn forget(self: &Arc<Self>, since: Instant) -> bool {
        // An access key changes only with its Secret.
        if matches!(self.origin, Origin::Static(_)) {
            return false;
        }
        let now = Instant::now();
        self.state.write(|state| {
            if state.held.as_ref().is_none_or(|held| held.since > since) {
                return true;
            }
            if state.forgotten.is_some_and(|at| now < at + FORGOTTEN_ONCE) {
                return false;
            }
            // New credentials are not available until the pause ends.
            let failed = state.failed.as_ref();
            if failed.is_some_and(|failed| !failed.is_over()) {
                return false;
            }
            state.forgotten = Some(now);
            // All tenants use the controller's own credentials, so the credentials remain in use during the renewal.
            if matches!(self.origin, Origin::Controller(_)) {
                // This renewal does not call STS.
                let nobody = ObjectKey::new("", "");
                drop(self.renew(state, &nobody));
                return false;
            }
            state.refused = state.held.take();
            true
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
        let turn = self.state.write(|state| {
            let known = state.known_account(region);
            known.ok_or_else(|| state.asked_in(region).turn.clone())
        });
        let turn = match turn {
            Ok(known) => return known,
            Err(turn) => turn,
        };
        // The namespace's share is taken before the turn, because other tenants can wait for the turn.
        let is_unknown = |state: &State| state.known_account(region).is_none();
        let needs_call = || turn.try_lock().is_ok() && self.state.read(is_unknown);
        self.calls.budget.take(tenant, needs_call).await;
        // A request that waited for the turn uses the result of the previous request.
        let _turn = turn.lock().await;
        if let Some(known) = self.state.read(|state| state.known_account(region)) {
            return known;
        }
        let answer = self.ask_account(tenant, region).await;
        self.state.write(|state| match answer {
            Ok(account) => {
                state.asked.clear();
                state.account = Some(account.clone());
                Ok(account)
            }
            Err(error) => {
                // A different region can have returned the account during the call.
                if let Some(account) = &state.account {
                    return Ok(account.clone());
                }
                let asked = state.asked_in(region);
                asked.failed = Some(Failed::after(asked.failed.as_ref(), error.clone()));
                Err(error)
            }
        })
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
            let account = || state.known_account(region);
            state.known().is_some_and(|known| known.is_err())
                || account().is_some_and(|known| known.is_err())
        });
        pauses && !matches!(self.origin, Origin::Static(_))
    }

    /// The expiry time of the credentials, and the last failure of the credentials or of the account lookup in this
    /// region. This function does not make a call.
    pub(super) fn condition(&self, region: &str) -> (Option<SystemTime>, Option<CredentialsError>) {
        self.state.read(|state| {
            let failed = state.failed.as_ref().or_else(|| state.no_account(region));
            let own = failed.map(|failed| failed.error.clone());
            let held = state.held.as_ref().or(state.refused.as_ref());
            (held.and_then(|held| held.expires), own)
        })
    }
}

impl State {
    /// The result that is known without a call, if any: credentials, or a failure during its pause.
    fn known(&self) -> Option<Answer> {
        let now = Instant::now();
        if let Some(held) = self.held.as_ref().filter(|held| held.is_good(now)) {
            return Some(Ok(held.keys.clone()));
        }
        let failed = self.failed.as_ref().filter(|failed| !failed.is_over());
        failed.map(|failed| Err(failed.error.clone()))
    }

    /// The account, or a failure in this region during its pause.
    fn known_account(&self, region: &str) -> Option<Result<String, CredentialsError>> {
        if let Some(account) = &self.account {
            return Some(Ok(account.clone()));
        }
        let failed = self.no_account(region).filter(|failed| !failed.is_over());
        failed.map(|failed| Err(failed.error.clone()))
    }

    fn no_account(&self, region: &str) -> Option<&Failed> {
        self.asked.get(region)?.failed.as_ref()
    }

    fn asked_in(&mut self, region: &str) -> &mut Asked {
        if self.asked.len() >= MAX_REGIONS {
            let lasts = |asked: &Asked| {
                asked
                    .failed
                    .as_ref()
                    .is_some_and(|failed| !failed.is_over())
            };
            self.asked.retain(|of, asked| {
                visit();
                of == region || lasts(asked)
            });
        }
        self.asked.entry(region.to_owned()).or_default()
    }
}

impl Failed {
    /// Creates the failure with its pause. `before` is the previous failure.
    fn after(before: Option<&Self>, error: CredentialsError) -> Self {
        let pauses = if error.kind.is_refusal() {
            REFUSED
        } else {
            OUTAGE
        };
        let pause = before.map_or(pauses.first, |before| pauses.following(before.pause));
        Self {
            error,
            pause,
            until: Instant::now() + pause,
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl Held {
    fn of(keys: Keys, at: Instant) -> Self {
        let life = keys.expiry().map(|end| until(end, now()));
        let life = life.filter(|life| !life.is_zero());
        Self {
            expires: keys.expiry(),
            // The random delay separates the renewals of sessions that started together.
            renew_at: life.map(|life| at + jittered(life * 3 / 4)),
            end: life.map(|life| at + life.saturating_sub(MARGIN)),
            since: at,
            keys,
        }
    }

    fn is_good(&self, now: Instant) -> bool {
        self.end.is_none_or(|end| now < end)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.renew_at.is_some_and(|at| now >= at)
    }
}
