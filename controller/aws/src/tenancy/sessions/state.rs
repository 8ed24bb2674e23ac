//! The state of one link: its credentials, their renewal, and their account. This module does not make a call.
//!
//! The credentials, the last failure and the renewal in progress are independent: each combination occurs. A request
//! receives the first of these results that exists:
//!
//! 1. Credentials that are in use and good, also after a failed renewal and during a renewal.
//! 2. The last failure, during its pause.
//! 3. The result of the renewal in progress.
//!
//! If none of them exists, the request starts a renewal.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::{BoxFuture, Shared as SharedFuture};
use kubelet_attestation::backoff::Backoff;
use node_attestation_core::time::until;
use node_attestation_runtime::clock::{jittered, now};
use node_attestation_runtime::shared::{Turnstile, visit};
use tokio::time::Instant;

use super::assume::Keys;
use super::error::CredentialsError;

/// The minimum remaining lifetime of returned credentials, because a call that uses them must end before they expire.
const MARGIN: Duration = Duration::from_mins(1);

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

/// The result for a request.
pub(super) type Answer = Result<Keys, CredentialsError>;

/// A renewal in progress.
pub(super) type Renewal = SharedFuture<BoxFuture<'static, Answer>>;

/// The state of a link.
#[derive(Debug, Default)]
pub(super) struct State {
    credentials: Credentials,
    /// The last failure since the last new credentials. The failure also determines the pause after the next failure.
    failed: Option<Failed>,
    renewal: Option<Renewal>,
    /// The account of the credentials.
    pub(super) account: Account,
    /// The last time at which AWS rejected the current credentials.
    rejected_at: Option<Instant>,
}

/// The credentials of a link.
#[derive(Debug, Default)]
enum Credentials {
    /// No renewal has succeeded yet.
    #[default]
    Missing,
    /// Requests receive the credentials until they expire.
    InUse(Held),
    /// AWS rejected the credentials. Requests do not receive the credentials, but a failed renewal makes them usable
    /// again.
    Withdrawn(Held),
}

/// Credentials, with the times of their renewal and their expiry.
#[derive(Debug, Clone)]
pub(super) struct Held {
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

/// The effect if AWS rejects the credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The rejected credentials are no longer in use, so a request receives different ones.
    Former,
    /// The credentials remain in use, because new credentials would not help, or are not available during a pause.
    Endured,
    /// The credentials in use must be replaced.
    Current,
}

/// The account of the credentials. An account that is known is valid in all regions.
#[derive(Debug)]
pub(super) enum Account {
    /// One region has returned the account.
    Known(String),
    /// No region has returned the account. Contains the regions whose STS was called for the account.
    Unknown(HashMap<String, RegionLookup>),
}

/// A region whose STS was called for the account.
#[derive(Debug, Default)]
pub(super) struct RegionLookup {
    /// The turn to call STS. All callers wait for the result of the holder's call.
    turn: Arc<Turnstile<()>>,
    failed: Option<Failed>,
}

/// The account, or the turn to call STS for it.
#[derive(Debug)]
pub(super) enum AccountLookup {
    Known(Result<String, CredentialsError>),
    Turn(Arc<Turnstile<()>>),
}

impl State {
    /// Returns the result that is known without a call, if any: credentials, or a failure during its pause.
    pub(super) fn known(&self) -> Option<Answer> {
        // Credentials come first: an STS outage does not affect them until they expire.
        match &self.credentials {
            Credentials::InUse(held) if held.is_good(Instant::now()) => Some(Ok(held.keys.clone())),
            Credentials::Missing | Credentials::InUse(_) | Credentials::Withdrawn(_) => {
                self.pause().map(|failed| Err(failed.error.clone()))
            }
        }
    }

    /// The renewal in progress.
    pub(super) fn renewal(&self) -> Option<&Renewal> {
        self.renewal.as_ref()
    }

    /// Whether the credentials in use must be renewed now, while requests still receive them.
    pub(super) fn is_due(&self) -> bool {
        let Credentials::InUse(held) = &self.credentials else {
            return false;
        };
        held.is_due(Instant::now()) && self.pause().is_none() && self.renewal.is_none()
    }

    /// Stores the renewal that starts now.
    pub(super) fn begin(&mut self, renewal: Renewal) {
        self.renewal = Some(renewal);
    }

    /// Stores the result of the renewal. Returns the result for the requests that waited.
    pub(super) fn settle(&mut self, answer: Result<Held, CredentialsError>) -> Answer {
        self.renewal = None;
        match answer {
            Ok(held) => {
                let keys = held.keys.clone();
                self.credentials = Credentials::InUse(held);
                self.failed = None;
                Ok(keys)
            }
            Err(error) => {
                self.failed = Some(Failed::after(self.failed.as_ref(), error.clone()));
                // This must happen before the lookup, because even rejected credentials are better than a failure.
                self.put_in_use_again();
                self.known().unwrap_or(Err(error))
            }
        }
    }

    /// Applies AWS's rejection of the credentials in a call that started at `since`, and returns its effect.
    pub(super) fn rejected(&mut self, since: Instant) -> Rejection {
        let now = Instant::now();
        match &self.credentials {
            Credentials::InUse(held) if held.since <= since => {}
            // The call might have used earlier credentials, so its rejection does not affect newer credentials.
            Credentials::Missing | Credentials::InUse(_) | Credentials::Withdrawn(_) => {
                return Rejection::Former;
            }
        }
        let is_recent = |at: Instant| now < at + FORGOTTEN_ONCE;
        // New credentials are not available until the pause ends.
        if self.rejected_at.is_some_and(is_recent) || self.pause().is_some() {
            return Rejection::Endured;
        }
        self.rejected_at = Some(now);
        Rejection::Current
    }

    /// Makes requests no longer receive the credentials, unless the next renewal fails.
    pub(super) fn withdraw(&mut self) {
        self.credentials = match std::mem::take(&mut self.credentials) {
            Credentials::InUse(held) | Credentials::Withdrawn(held) => Credentials::Withdrawn(held),
            Credentials::Missing => Credentials::Missing,
        };
    }

    fn put_in_use_again(&mut self) {
        self.credentials = match std::mem::take(&mut self.credentials) {
            Credentials::InUse(held) | Credentials::Withdrawn(held) => Credentials::InUse(held),
            Credentials::Missing => Credentials::Missing,
        };
    }

    /// The expiry time of the credentials, and the last failure of the credentials or of the account lookup in this
    /// region.
    pub(super) fn condition(&self, region: &str) -> (Option<SystemTime>, Option<CredentialsError>) {
        let expires = match &self.credentials {
            Credentials::InUse(held) | Credentials::Withdrawn(held) => held.expires,
            Credentials::Missing => None,
        };
        let failed = self.failed.as_ref().or_else(|| self.account.failed(region));
        (expires, failed.map(|failed| failed.error.clone()))
    }

    /// Returns the last failure, during its pause.
    fn pause(&self) -> Option<&Failed> {
        self.failed.as_ref().filter(|failed| !failed.is_over())
    }
}

impl Default for Account {
    fn default() -> Self {
        Self::Unknown(HashMap::new())
    }
}

impl Account {
    /// Returns the account, or a failure in this region during its pause.
    pub(super) fn known(&self, region: &str) -> Option<Result<String, CredentialsError>> {
        if let Self::Known(account) = self {
            return Some(Ok(account.clone()));
        }
        let failed = self.failed(region).filter(|failed| !failed.is_over());
        failed.map(|failed| Err(failed.error.clone()))
    }

    /// Returns the result of [`known`](Self::known). If there is no result, returns the turn to call the STS of this
    /// region.
    pub(super) fn look_up(&mut self, region: &str) -> AccountLookup {
        let known = self.known(region);
        match (known, self) {
            (Some(known), _) => AccountLookup::Known(known),
            (None, Self::Known(account)) => AccountLookup::Known(Ok(account.clone())),
            (None, Self::Unknown(regions)) => {
                AccountLookup::Turn(region_lookup(regions, region).turn.clone())
            }
        }
    }

    /// Stores the result of the call in this region. Returns the result for the request.
    pub(super) fn settle(
        &mut self,
        region: &str,
        answer: Result<String, CredentialsError>,
    ) -> Result<String, CredentialsError> {
        let error = match answer {
            Ok(account) => {
                *self = Self::Known(account.clone());
                return Ok(account);
            }
            Err(error) => error,
        };
        match self {
            // A different region might have returned the account during the call.
            Self::Known(account) => Ok(account.clone()),
            Self::Unknown(regions) => {
                let lookup = region_lookup(regions, region);
                lookup.failed = Some(Failed::after(lookup.failed.as_ref(), error.clone()));
                Err(error)
            }
        }
    }

    fn failed(&self, region: &str) -> Option<&Failed> {
        match self {
            Self::Known(_) => None,
            Self::Unknown(regions) => regions.get(region)?.failed.as_ref(),
        }
    }
}

/// Returns the entry for `region`. At the limit, removes other entries first.
fn region_lookup<'a>(
    regions: &'a mut HashMap<String, RegionLookup>,
    region: &str,
) -> &'a mut RegionLookup {
    if regions.len() >= MAX_REGIONS {
        let lasts = |lookup: &RegionLookup| {
            let failed = lookup.failed.as_ref();
            failed.is_some_and(|failed| !failed.is_over())
        };
        regions.retain(|of, lookup| {
            visit();
            of == region || lasts(lookup)
        });
    }
    regions.entry(region.to_owned()).or_default()
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
    /// Creates the state of credentials that were requested at `at`.
    pub(super) fn of(keys: Keys, at: Instant) -> Self {
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

    /// Returns the same credentials with the expiry time that STS returned.
    pub(super) fn expiring_at(self, expires: SystemTime) -> Self {
        Self {
            expires: Some(expires),
            ..self
        }
    }

    fn is_good(&self, now: Instant) -> bool {
        self.end.is_none_or(|end| now < end)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.renew_at.is_some_and(|at| now >= at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::FailureKind;
    use super::*;

    fn held() -> Held {
        Held::of(
            Keys::new("AKIA1", "secret", None, None, "test"),
            Instant::now(),
        )
    }

    fn outage() -> CredentialsError {
        CredentialsError {
            step: "a role".into(),
            kind: FailureKind::Unavailable("no response in time".to_owned()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn withdrawn_credentials_are_in_use_again_after_a_failed_renewal() {
        let mut state = State::default();
        assert!(state.known().is_none());
        assert!(state.settle(Ok(held())).is_ok());

        assert_eq!(state.rejected(Instant::now()), Rejection::Current);
        state.withdraw();

        assert!(state.known().is_none());
        assert_eq!(state.rejected(Instant::now()), Rejection::Former);
        assert!(state.settle(Err(outage())).is_ok());
        assert!(state.known().is_some_and(|known| known.is_ok()));
        assert_eq!(state.condition("eu-west-1"), (None, Some(outage())));
        // The first time is in the pause. The second time is after the pause, but within five minutes after the first
        // rejection.
        for pause in [Duration::ZERO, Duration::from_mins(1)] {
            tokio::time::advance(pause).await;
            assert_eq!(state.rejected(Instant::now()), Rejection::Endured);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_from_one_region_ends_the_pause_of_another_region() {
        let mut account = Account::default();
        let failed = account.settle("eu-west-1", Err(outage()));
        assert_eq!(failed, Err(outage()));
        assert_eq!(account.known("eu-west-1"), Some(Err(outage())));
        assert_eq!(account.known("eu-west-2"), None);

        let known = account.settle("eu-west-2", Ok("111122223333".to_owned()));

        assert_eq!(account.known("eu-west-1"), Some(known.clone()));
        assert_eq!(account.settle("eu-west-1", Err(outage())), known);
    }
}
