//! The Secret that contains a bootstrap token, and the time at which the token expires.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use kubelet_attestation::backoff::Backoff;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::watch::is_short_version;

/// The lifetime of a token that is not extended again: longer than an update of the controller, and shorter than a
/// night.
pub const TTL: Duration = Duration::from_hours(6);

/// The minimum lifetime of a pool's token after an extension. The bootstrap provider replaces a token when less than
/// half of its own lifetime is left. Therefore, the token is extended again when half of this lifetime is left.
pub const POOL_TTL: Duration = Duration::from_hours(48);

/// The maximum lifetime of a pool's token after an extension, which applies if the bootstrap provider uses long
/// lifetimes.
const MAX_POOL_TTL: Duration = Duration::from_hours(365 * 24);

/// One hour, in seconds.
const HOUR: u64 = 3600;

/// The label on a Secret whose token was extended, and has not been expired since then.
pub const EXTENDED: &str = "attestation.cluster.x-k8s.io/extended";

/// The delays before a missing token is read again.
const WAIT: Backoff = Backoff {
    first: Duration::from_mins(1),
    longest: Duration::from_hours(24),
};

/// The delay from which a missing token counts as deleted: it was missing four times within 7 minutes. A new token
/// can be missing once.
pub(super) const WAIT_IF_GONE: Duration = Duration::from_mins(8);

/// The type of a bootstrap token Secret.
pub(super) const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// The state of a token when it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Another client set the expiry time. [`Timestamp::MAX`] means that the token does not expire.
    Ends(Timestamp),
    /// This controller set the expiry time.
    Extended(Timestamp),
    /// The token could not be extended. This state rarely changes, because new tokens have new IDs.
    Missing {
        /// The time of the next read, on a monotonic clock.
        next: Duration,
        wait: Duration,
    },
}

impl Life {
    /// The state of a token that was missing or unusable at `elapsed`, which is a time on a monotonic clock.
    pub(super) fn missing(before: Option<Self>, elapsed: Duration) -> Self {
        let wait = match before {
            Some(Self::Missing { wait, .. }) => WAIT.following(wait),
            _ => WAIT.first,
        };
        Self::Missing {
            next: elapsed.saturating_add(wait),
            wait,
        }
    }

    /// Whether less than half of the lifetime is left, or whether a missing token must be read again.
    pub(super) fn is_due(self, now: Timestamp, elapsed: Duration, term: Duration) -> bool {
        match self {
            Self::Ends(end) | Self::Extended(end) => is_half_over(end, now, term),
            Self::Missing { next, .. } => next <= elapsed,
        }
    }

    /// The new expiry time of a Machine's token, if the token must be extended.
    pub(super) fn extended(self, now: Timestamp) -> Option<Timestamp> {
        let (Self::Ends(end) | Self::Extended(end)) = self else {
            return None;
        };
        later_than(end, now, TTL).filter(|_| is_half_over(end, now, TTL))
    }

    /// The new expiry time of a pool's token with this [term](TokenSecret::pool_term), if the token must be extended.
    ///
    /// The first extension does not wait until half of the lifetime has passed, because the bootstrap provider would
    /// replace the token at that time. A token that has expired is not extended, so that it stays expired.
    pub(super) fn extended_of_pool(self, now: Timestamp, term: Duration) -> Option<Timestamp> {
        let (end, is_due) = match self {
            Self::Ends(end) => (end, true),
            Self::Extended(end) => (end, is_half_over(end, now, term)),
            Self::Missing { .. } => return None,
        };
        later_than(end, now, term).filter(|_| is_due && end > now)
    }
}

/// The end of a lifetime that begins now, if it is later than `end`.
fn later_than(end: Timestamp, now: Timestamp, term: Duration) -> Option<Timestamp> {
    let later = now.saturating_add(term).unwrap_or(Timestamp::MAX);
    // The Secret stores whole seconds.
    let later = Timestamp::from_second(later.as_second()).ok()?;
    (later > end).then_some(later)
}

/// Whether less than half of this lifetime of a token is left.
fn is_half_over(end: Timestamp, now: Timestamp, term: Duration) -> bool {
    end < now.saturating_add(term / 2).unwrap_or(Timestamp::MAX)
}

/// The Secret of a bootstrap token, without the secret part. Annotations are also omitted, because kubectl stores a
/// copy of the secret in an annotation.
#[derive(Debug, Deserialize)]
pub(super) struct TokenSecret {
    pub(super) metadata: Metadata,
    #[serde(rename = "type")]
    kind: String,
    data: TokenData,
    /// The lifetime after the extension of a pool's token, from the label.
    #[serde(skip)]
    term: Option<Duration>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    resource_version: String,
    pub(super) labels: Option<Labels>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Labels {
    #[serde(rename = "attestation.cluster.x-k8s.io/extended")]
    extended: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct TokenData {
    expiration: Option<ByteString>,
}

impl TokenSecret {
    /// The Secret, and the state of its token. `None` if it is not a token or cannot be decoded, or if its
    /// `resourceVersion` is so long that it could not be kept while the Secret is written.
    pub(super) fn parse(text: &str) -> Option<(Self, Life)> {
        let mut secret: Self = serde_json::from_str(text).ok()?;
        // The label also shows extensions by a previous process, whose tokens this process must expire.
        let label = secret.metadata.labels.take();
        let label = label.and_then(|labels| labels.extended);
        let is_extended = label.is_some();
        let hours = label.and_then(|label| label.as_str()?.parse::<u32>().ok());
        secret.term = hours.map(|hours| Duration::from_hours(hours.into()));
        let life = match &secret.data.expiration {
            None => Life::Ends(Timestamp::MAX),
            Some(end) => {
                let end = std::str::from_utf8(&end.0).ok()?.parse().ok()?;
                let life = if is_extended {
                    Life::Extended
                } else {
                    Life::Ends
                };
                life(end)
            }
        };
        let is_token = secret.kind == SECRET_TYPE;
        let is_short = is_short_version(&secret.metadata.resource_version);
        (is_token && is_short).then_some((secret, life))
    }

    /// The lifetime of a pool's token after its next extension.
    ///
    /// At the first extension, the bootstrap provider has not replaced the token yet, so more than half of its own
    /// lifetime is left. Therefore half of the new lifetime is more than half of the bootstrap provider's lifetime.
    pub(super) fn pool_term(&self, life: Life, now: Timestamp) -> Duration {
        let term = match life {
            Life::Ends(end) => {
                let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
                left.saturating_mul(2)
            }
            Life::Extended(_) | Life::Missing { .. } => self.term.unwrap_or_default(),
        };
        term.clamp(POOL_TTL, MAX_POOL_TTL)
    }

    /// The latest expiry time that this controller could have set.
    pub(super) fn latest_end(&self, now: Timestamp) -> Timestamp {
        let term = self.term.map_or(TTL, |term| term.max(TTL));
        now.saturating_add(term).unwrap_or(Timestamp::MAX)
    }

    /// The patch that sets this expiry time, if the Secret has not changed since it was read. The label marks a token
    /// that the controller must still expire.
    pub(super) fn ending_at(&self, end: Timestamp, is_extended: bool) -> Value {
        self.ending_with(end, is_extended.then_some("true"))
    }

    /// Like [`ending_at`](Self::ending_at), but for a pool's token that is extended by this lifetime. The label
    /// contains the lifetime in hours.
    pub(super) fn ending_of_pool(&self, end: Timestamp, term: Duration) -> Value {
        self.ending_with(end, Some(&term.as_secs().div_ceil(HOUR).to_string()))
    }

    fn ending_with(&self, end: Timestamp, label: Option<&str>) -> Value {
        json!({
            "metadata": {
                "resourceVersion": self.metadata.resource_version,
                "labels": {EXTENDED: label},
            },
            "data": {"expiration": ByteString(end.to_string().into_bytes())},
        })
    }
}
