//! The lifetime of bootstrap tokens (`bootstrapTokens: Manage`).
//!
//! Cluster API's bootstrap provider extends a Machine's token only until the Machine has a Node. However, a Machine
//! needs its token as long as it exists, to enroll again after its disk is lost. While attestation is enforced, this
//! module extends the tokens that are needed, and expires them some time after their Machine is deleted. It does not
//! manage pool tokens: the bootstrap provider replaces a pool's token, but only shortly before the token expires.
//!
//! While attestation is not enforced, a token is sufficient to join as any node. Therefore the module does not extend
//! tokens. It expires the tokens that it extended before, except for Machines without a Node, because the bootstrap
//! provider keeps these tokens valid.
//!
//! The Secret of an extended token has the label [`EXTENDED`]. After a restart, the controller uses the label to find
//! the tokens whose Machines were deleted while it was not running.
//!
//! # Guarantees
//!
//! - The controller does not create or delete tokens, and does not set an expiry time on a token that has none. It
//!   expires only tokens that it has extended. Therefore it does not need permission to create or delete Secrets in
//!   `kube-system`. Only an operator command creates tokens.
//! - Reading a token returns its secret part, as for every Secret, but the secret part is never decoded: the type has
//!   no field for it. Writes return only metadata.
//! - A missing token is read again at increasing intervals, up to one day.
//! - A token is read only when it is first needed, when half of its lifetime has passed, and when it must expire.
//!   Labeled tokens are listed once, without their contents.

mod recreate;
#[cfg(feature = "testing")]
pub mod testing;

pub(crate) use recreate::recreate;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch};
use kube::{Client, Resource as _};
use kubelet_attestation::backoff::Backoff;
use node_attestation_core::identifiers::TokenId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::access::{HardeningError, call};
use crate::client::{CONTROLLER, merge};
use crate::memory::{Holding, Share};
use crate::watch::{MetadataOf, metadata_page_of, patched_metadata, text_of_one};

/// The lifetime of a token without further extensions: longer than an update of the controller, and shorter than a
/// night.
pub const TTL: Duration = Duration::from_hours(6);

/// The label on a Secret whose token was extended and has not been expired since then.
pub const EXTENDED: &str = "attestation.cluster.x-k8s.io/extended";

/// The page size for lists of Secrets.
const PAGE: u32 = 500;

/// The maximum number of pages. All pages together contain more Secrets than a cluster has Machines.
const MAX_PAGES: usize = 20;

/// The maximum number of tokens from these lists. A list that fails after a few pages is read again, and might then
/// contain other tokens.
const MAX_FORMER: usize = 10_000;

/// The memory that is reserved for the tokens of each cluster, which is enough for 256 tokens.
const OWN_MEMORY: usize = 32 * 1024;

/// An upper bound for the memory that a token uses: its ID, its state, and its place in a map.
const TOKEN_LEN: usize = 128;

/// A round can start reading tokens during this time. The rest of its deadline is for the calls in progress.
const ROUND: Duration = Duration::from_secs(30);

/// The delays before a missing token is read again.
const WAIT: Backoff = Backoff {
    first: Duration::from_mins(1),
    longest: Duration::from_hours(24),
};

/// The delay from which a missing token counts as deleted: it was missing four times within seven minutes. A new token
/// can be missing once.
const WAIT_IF_GONE: Duration = Duration::from_mins(8);

const NAMESPACE: &str = "kube-system";

/// The name prefix of token Secrets.
const NAME_PREFIX: &str = "bootstrap-token-";

/// The type of a bootstrap token Secret.
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// The managed tokens of one cluster.
#[derive(Debug)]
pub struct Tokens {
    /// An extended token expires this long after the last round that needed it.
    grace: Duration,
    /// The tokens that are needed, and the extended tokens that have not been expired yet.
    known: BTreeMap<TokenId, Known>,
    /// Whether the map includes the tokens that a previous process extended.
    has_former: bool,
    /// The memory that the map uses.
    memory: Holding,
}

#[derive(Debug)]
struct Known {
    life: Life,
    /// The time since which the token has not been needed. Monotonic, because the wall clock can be set forward.
    unwanted_since: Option<Duration>,
}

/// The state of a token when it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
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

/// The changes to tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// The extended tokens.
    pub extended: Vec<TokenId>,
    /// The tokens that the controller expired, or that had already expired.
    pub ended: Vec<TokenId>,
}

impl Tokens {
    /// Creates an empty set. An extended token is expired after it has not been needed for `grace`.
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            known: BTreeMap::new(),
            has_former: false,
            memory: Share::new("", OWN_MEMORY).holding(),
        }
    }

    /// Charges the memory for the tokens to this namespace.
    pub(crate) fn of_namespace(self, namespace: &str) -> Self {
        self.within(&Share::new(namespace, OWN_MEMORY))
    }

    fn within(self, share: &Share) -> Self {
        let memory = share.holding();
        Self { memory, ..self }
    }

    /// Reserves memory for this number of tokens. If there is not enough memory, returns `false` and does not change
    /// the reservation.
    fn hold(&mut self, tokens: usize) -> bool {
        self.memory.resize(tokens.saturating_mul(TOKEN_LEN))
    }

    /// Extends those `wanted` tokens for which less than half of [`TTL`] is left. Expires extended tokens that have not
    /// been needed for the grace period.
    ///
    /// If the API server rejects the change to a token, the next round retries it.
    ///
    /// # Errors
    ///
    /// Returns an error if the API server is unavailable, or if a permission is missing. Changes before the failure are
    /// complete.
    pub async fn keep(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        now: SystemTime,
        elapsed: Duration,
    ) -> Result<Kept, HardeningError> {
        self.round(client, wanted, (now, elapsed), true).await
    }

    /// Expires extended tokens that have not been `wanted` for the grace period, and does not extend any token. Used
    /// while attestation is not enforced.
    ///
    /// # Errors
    ///
    /// Like [`Tokens::keep`].
    pub async fn release(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        now: SystemTime,
        elapsed: Duration,
    ) -> Result<Kept, HardeningError> {
        self.round(client, wanted, (now, elapsed), false).await
    }

    /// Expires tokens that are not needed. If `extends` is set, first extends the `wanted` tokens.
    async fn round(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        (now, elapsed): (SystemTime, Duration),
        extends: bool,
    ) -> Result<Kept, HardeningError> {
        let mut kept = Kept::default();
        let Ok(now) = Timestamp::try_from(now) else {
            return Ok(kept);
        };
        self.mark(wanted, elapsed);
        let begin = Instant::now();
        for token in wanted.iter().filter(|_| extends) {
            let before = self.known.get(token).map(|known| known.life);
            if before.is_some_and(|life| !life.is_due(now, elapsed)) {
                continue;
            }
            // The next round continues with the tokens that have not been read.
            if begin.elapsed() >= ROUND {
                break;
            }
            let extended = extend(client, token, before, (now, elapsed)).await;
            if let Some((life, is_new)) = unless_of_one_token(extended)? {
                let unwanted_since = None;
                let known = Known {
                    life,
                    unwanted_since,
                };
                self.known.insert(token.clone(), known);
                kept.extended.extend(is_new.then(|| token.clone()));
            }
        }
        self.end_unwanted(client, now, elapsed, &mut kept).await?;
        Ok(kept)
    }

    /// Records since when each token has not been needed. Drops other clients' tokens that are not needed.
    fn mark(&mut self, wanted: &BTreeSet<TokenId>, elapsed: Duration) {
        self.known.retain(|token, known| {
            let is_wanted = wanted.contains(token);
            let since = known.unwanted_since.unwrap_or(elapsed);
            known.unwanted_since = (!is_wanted).then_some(since);
            is_wanted || matches!(known.life, Life::Extended(_))
        });
    }

    async fn end_unwanted(
        &mut self,
        client: &Client,
        now: Timestamp,
        elapsed: Duration,
        kept: &mut Kept,
    ) -> Result<(), HardeningError> {
        let over = |since: Duration| elapsed >= since + self.grace;
        let due = self.known.iter();
        let due = due.filter(|(_, known)| known.unwanted_since.is_some_and(over));
        let due: Vec<TokenId> = due.map(|(token, _)| token.clone()).collect();
        for token in due {
            if unless_of_one_token(end(client, &token, now).await)?.is_some() {
                self.known.remove(&token);
                kept.ended.push(token);
            }
        }
        // Needed tokens belong to known Machines, so they are stored even if the reserved memory is exhausted.
        self.hold(self.known.len());
        Ok(())
    }

    /// The needed tokens that no longer exist.
    pub fn gone(&self) -> BTreeSet<&TokenId> {
        let is_gone =
            |life: &Life| matches!(life, Life::Missing { wait, .. } if *wait >= WAIT_IF_GONE);
        let gone = self.known.iter().filter(|(_, known)| is_gone(&known.life));
        gone.map(|(token, _)| token).collect()
    }

    /// Finds the tokens that a previous process extended. The first successful call does this, and later calls have no
    /// effect.
    ///
    /// Tokens that are not in `wanted` count as not needed from now on.
    ///
    /// The search is a separate step, because it needs permission to list Secrets, and must not delay other steps. If
    /// there are more than 10,000 tokens, or too many for the memory, the remaining tokens expire without a change.
    ///
    /// # Errors
    ///
    /// Like [`Tokens::keep`].
    pub async fn find_former(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        now: SystemTime,
        elapsed: Duration,
    ) -> Result<(), HardeningError> {
        let Ok(now) = Timestamp::try_from(now) else {
            return Ok(());
        };
        if self.has_former {
            return Ok(());
        }
        let api: Api<MetadataOf<Secret>> = Api::namespaced(client.clone(), NAMESPACE);
        let mut page = ListParams::default().labels(EXTENDED).limit(PAGE);
        for _ in 0..MAX_PAGES {
            let listed = metadata_page_of(&api, &page);
            let listed = call(format!("list secrets with the label {EXTENDED}"), listed).await?;
            for secret in listed.items {
                let name = secret.metadata.name.unwrap_or_default();
                let token = name.strip_prefix(NAME_PREFIX).map(TokenId::parse);
                let Some(Ok(token)) = token else {
                    continue;
                };
                if self.known.len() >= MAX_FORMER || !self.hold(self.known.len() + 1) {
                    break;
                }
                let unwanted_since = (!wanted.contains(&token)).then_some(elapsed);
                self.known.entry(token).or_insert(Known {
                    life: Life::Extended(now),
                    unwanted_since,
                });
            }
            match listed.metadata.continue_.filter(|rest| !rest.is_empty()) {
                Some(rest) => page.continue_token = Some(rest),
                None => break,
            }
        }
        self.has_former = true;
        Ok(())
    }
}

/// Returns `None` for a failure that affects only this token, which the next round retries.
fn unless_of_one_token<T>(outcome: Result<T, HardeningError>) -> Result<Option<T>, HardeningError> {
    match outcome {
        Err(HardeningError::Refused { .. }) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Reads a token, and extends it if less than half of its lifetime is left. Returns its state, and whether the token
/// was extended.
async fn extend(
    client: &Client,
    token: &TokenId,
    before: Option<Life>,
    (now, elapsed): (Timestamp, Duration),
) -> Result<(Life, bool), HardeningError> {
    let name = format!("{NAME_PREFIX}{token}");
    let Some((found, life)) = read(client, &name).await? else {
        return Ok((Life::missing(before, elapsed), false));
    };
    let Some(end) = life.extended(now) else {
        return Ok((life, false));
    };
    write(client, &name, &found.ending_at(end, true)).await?;
    Ok((Life::Extended(end), true))
}

/// Makes the token expire now, if it exists and has not expired. If its expiry time is later than this controller can
/// set, the token is not changed, because another client has extended it.
async fn end(client: &Client, token: &TokenId, now: Timestamp) -> Result<(), HardeningError> {
    let name = format!("{NAME_PREFIX}{token}");
    let found = read(client, &name).await?;
    // The Secret stores whole seconds.
    let ends = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let ours = now..=now.saturating_add(TTL).unwrap_or(now);
    if let Some((found, Life::Ends(end) | Life::Extended(end))) = found
        && ours.contains(&end)
    {
        write(client, &name, &found.ending_at(ends, false)).await?;
    }
    Ok(())
}

/// Reads a Secret as text, which is wiped after use, because the client logs responses that it cannot decode. Returns
/// `None` if the Secret does not exist or is not a token.
async fn read(client: &Client, name: &str) -> Result<Option<(TokenSecret, Life)>, HardeningError> {
    let path = Secret::url_path(&(), Some(NAMESPACE));
    // The text is parsed within the call, so that the processor time is charged to the namespace.
    let read = async {
        let text = text_of_one(client, path, name).await;
        text.map(|text| TokenSecret::parse(&text))
    };
    match call(format!("get secrets/{name}"), read).await {
        Err(error) if error.is_not_found() => Ok(None),
        answer => answer,
    }
}

async fn write(client: &Client, name: &str, patch: &Value) -> Result<(), HardeningError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let options = merge(CONTROLLER);
    let patch = Patch::Merge(patch);
    let written = patched_metadata(&api, name, &options, &patch);
    call(format!("patch secrets/{name}"), written).await?;
    Ok(())
}

impl Life {
    /// The state of a token that was missing or unusable at this time, which is monotonic.
    fn missing(before: Option<Self>, elapsed: Duration) -> Self {
        let wait = match before {
            Some(Self::Missing { wait, .. }) => WAIT.following(wait),
            _ => WAIT.first,
        };
        Self::Missing {
            next: elapsed.saturating_add(wait),
            wait,
        }
    }

    /// Whether less than half of the lifetime is left, or a missing token must be read again.
    fn is_due(self, now: Timestamp, elapsed: Duration) -> bool {
        match self {
            Self::Ends(end) | Self::Extended(end) => is_half_over(end, now),
            Self::Missing { next, .. } => next <= elapsed,
        }
    }

    /// The new expiry time, if the token must be extended.
    fn extended(self, now: Timestamp) -> Option<Timestamp> {
        let (Self::Ends(end) | Self::Extended(end)) = self else {
            return None;
        };
        let later = now.saturating_add(TTL).unwrap_or(Timestamp::MAX);
        // The Secret stores whole seconds.
        let later = Timestamp::from_second(later.as_second()).ok()?;
        (is_half_over(end, now) && later > end).then_some(later)
    }
}

/// Whether less than half of a token's lifetime is left.
fn is_half_over(end: Timestamp, now: Timestamp) -> bool {
    end < now.saturating_add(TTL / 2).unwrap_or(Timestamp::MAX)
}

/// The Secret of a bootstrap token, without the secret part. Annotations are also omitted, because kubectl stores a
/// copy of the secret in an annotation.
#[derive(Debug, Deserialize)]
struct TokenSecret {
    metadata: Metadata,
    #[serde(rename = "type")]
    kind: String,
    data: TokenData,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[expect(clippy::zero_sized_map_values, reason = "only the keys are read")]
    labels: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Debug, Deserialize)]
struct TokenData {
    expiration: Option<ByteString>,
}

impl TokenSecret {
    /// The Secret, and the state of its token. `None` if it is not a token or cannot be decoded.
    fn parse(text: &str) -> Option<(Self, Life)> {
        let mut secret: Self = serde_json::from_str(text).ok()?;
        // Frees memory: a tenant's API server can send thousands of labels, and then never answer the write.
        let labels = secret.metadata.labels.take();
        // The label also shows extensions by a previous process, whose tokens this process must expire.
        let is_extended = labels.is_some_and(|labels| labels.contains_key(EXTENDED));
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
        (secret.kind == SECRET_TYPE).then_some((secret, life))
    }

    /// The patch that sets this expiry time, if the Secret has not changed since it was read. The label marks a token
    /// that the controller must still expire.
    fn ending_at(&self, end: Timestamp, is_extended: bool) -> Value {
        json!({
            "metadata": {
                "resourceVersion": self.metadata.resource_version,
                "labels": {EXTENDED: is_extended.then_some("true")},
            },
            "data": {"expiration": ByteString(end.to_string().into_bytes())},
        })
    }
}

#[cfg(test)]
mod tests;
