//! The lifetime of bootstrap tokens (`bootstrapTokens: Manage`).
//!
//! Cluster API's bootstrap provider extends a Machine's token until the Machine has a Node. A
//! Machine's is needed as long as the Machine, to enrol again after the loss of its disk. Here the
//! tokens that are wanted are extended while they are wanted, and ended when their Machine has been
//! gone for a while. A pool's is not for here: the provider replaces it, and only when it is about
//! to end.
//!
//! The Secret of an extended token has the label [`EXTENDED`], by which a controller that has just started
//! finds those of Machines that were deleted meanwhile.
//!
//! # Guarantees
//!
//! - The controller creates and deletes nothing, and gives nothing an end that it did not have; it ends nothing that
//!   it did not extend. So it needs no right to create or delete Secrets of `kube-system`. Only an operator's command
//!   creates tokens.
//! - The secret half is in the answer of a read, as in every read of a Secret, and is not taken out
//!   of it: the type that it is read into has no field for it. Writes are answered with metadata.
//! - A token that is missing is read ever more seldom, at last once a day.
//! - A token is read when it is first wanted, when half of its time has passed, and when it is to
//!   end, and not between. Labelled ones are listed once, without their contents.

mod recreate;
#[cfg(feature = "testing")]
pub mod testing;

pub(crate) use recreate::recreate;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, GetParams, ListParams, Patch, Request};
use kube::{Client, Error as KubeError, Resource as _};
use node_attestation_core::identifiers::TokenId;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::access::{HardeningError, call};
use crate::client::{CONTROLLER, merge};
use crate::watch::{MetadataOf, metadata_page_of};

/// The lifetime of a token that nobody extends: longer than the controller is away for an
/// update, shorter than a night.
pub const TTL: Duration = Duration::from_hours(6);

/// The label of a Secret whose token was extended, and is not ended yet.
pub const EXTENDED: &str = "attestation.cluster.x-k8s.io/extended";

/// The Secrets in one page of a list.
const PAGE: u32 = 500;

/// The pages that are read: more Secrets than a cluster has Machines.
const MAX_PAGES: usize = 20;

/// The limit of tokens that are known from such lists: a list that fails after some pages is read again, and can have
/// others.
const MAX_FORMER: usize = 10_000;

/// The time in which a round begins to read tokens: a call's own deadline after it, the round has one too.
const ROUND: Duration = Duration::from_secs(30);

/// The waits before a token that is missing is read again.
const FIRST_WAIT: Duration = Duration::from_mins(1);
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// The wait from which a missing token is gone: it was missing four times, in seven minutes. A token that was just created
/// can be missing once.
const WAIT_IF_GONE: Duration = Duration::from_mins(8);

const NAMESPACE: &str = "kube-system";

/// The prefix of the names of tokens' Secrets.
const NAME_PREFIX: &str = "bootstrap-token-";

/// The type of a Secret that is a bootstrap token.
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// The tokens of one cluster that are kept alive.
#[derive(Debug)]
pub struct Tokens {
    /// The time between the last round that wanted an extended token and its end.
    grace: Duration,
    /// The wanted tokens, and the extended ones that have not ended yet.
    known: BTreeMap<TokenId, Known>,
    /// Whether those are among them that were extended before.
    has_former: bool,
}

#[derive(Debug)]
struct Known {
    life: Life,
    /// By a monotonic clock: the wall clock can be set ahead.
    unwanted_since: Option<Duration>,
}

/// The state of a token when it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Another client set this end; [`Timestamp::MAX`] stands for none.
    Ends(Timestamp),
    /// It ends then because it was extended here.
    Extended(Timestamp),
    /// It could not be extended, which seldom changes: who makes tokens gives new ones new IDs.
    Missing {
        /// The next time that it is read.
        next: Timestamp,
        wait: Duration,
    },
}

/// The changes of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// The extended tokens.
    pub extended: Vec<TokenId>,
    /// The tokens that were ended, or had ended by then.
    pub ended: Vec<TokenId>,
}

impl Tokens {
    /// None yet; one that was extended is ended when it has not been wanted for `grace`.
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            known: BTreeMap::new(),
            has_former: false,
        }
    }

    /// Extends those of the `wanted` tokens that have less than half of [`TTL`] left, and ends those that were
    /// extended and have not been wanted for a while. Another round goes on with those that the API server did not
    /// let be changed.
    ///
    /// # Errors
    ///
    /// The API server is away, or a right is missing; those before are done.
    pub async fn keep(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        now: SystemTime,
        elapsed: Duration,
    ) -> Result<Kept, HardeningError> {
        let mut kept = Kept::default();
        let Ok(now) = Timestamp::try_from(now) else {
            return Ok(kept);
        };
        self.known.retain(|token, known| {
            let is_wanted = wanted.contains(token);
            let since = known.unwanted_since.unwrap_or(elapsed);
            known.unwanted_since = (!is_wanted).then_some(since);
            is_wanted || matches!(known.life, Life::Extended(_))
        });
        let begin = Instant::now();
        for token in wanted {
            let before = self.known.get(token).map(|known| known.life);
            if before.is_some_and(|life| !life.is_due(now)) {
                continue;
            }
            // The next round goes on with those that are not known by then.
            if begin.elapsed() >= ROUND {
                break;
            }
            let extended = extend(client, token, before, now).await;
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
        Ok(kept)
    }

    /// The wanted tokens that are gone.
    pub fn gone(&self) -> BTreeSet<&TokenId> {
        let is_gone =
            |life: &Life| matches!(life, Life::Missing { wait, .. } if *wait >= WAIT_IF_GONE);
        let gone = self.known.iter().filter(|(_, known)| is_gone(&known.life));
        gone.map(|(token, _)| token).collect()
    }

    /// Finds the tokens that were extended before this began, the first time that it can; they are unwanted
    /// from now on, unless they are among the `wanted`. A part of its own, for which nothing else waits: it
    /// takes the right to list Secrets. Of more than 10,000 the others end by themselves.
    ///
    /// # Errors
    ///
    /// As [`Tokens::keep`].
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
                if self.known.len() >= MAX_FORMER {
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

/// `None` for a failure of this token alone; it is looked at again next time.
fn unless_of_one_token<T>(outcome: Result<T, HardeningError>) -> Result<Option<T>, HardeningError> {
    match outcome {
        Err(HardeningError::Refused { .. }) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Reads a token, and extends it if it is short; what it is then, and whether it was extended.
async fn extend(
    client: &Client,
    token: &TokenId,
    before: Option<Life>,
    now: Timestamp,
) -> Result<(Life, bool), HardeningError> {
    let name = format!("{NAME_PREFIX}{token}");
    let Some((found, life)) = read(client, &name).await? else {
        return Ok((Life::missing(before, now), false));
    };
    let Some(end) = life.extended(now) else {
        return Ok((life, false));
    };
    write(client, &name, &found.ending_at(end, true)).await?;
    Ok((Life::Extended(end), true))
}

/// Ends the token now, if it is there, and would live on: for no longer than it could by an
/// extension of ours, for what ends later somebody else prolonged.
async fn end(client: &Client, token: &TokenId, now: Timestamp) -> Result<(), HardeningError> {
    let name = format!("{NAME_PREFIX}{token}");
    let found = read(client, &name).await?;
    // Seconds are what the Secret says.
    let ends = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let ours = now..=now.saturating_add(TTL).unwrap_or(now);
    if let Some((found, Life::Ends(end) | Life::Extended(end))) = found
        && ours.contains(&end)
    {
        write(client, &name, &found.ending_at(ends, false)).await?;
    }
    Ok(())
}

/// Reads a Secret as text, which is overwritten after use: the client writes to the log what it
/// cannot decode itself. `None` if it is not there, or is no token.
async fn read(client: &Client, name: &str) -> Result<Option<(TokenSecret, Life)>, HardeningError> {
    let path = Secret::url_path(&(), Some(NAMESPACE));
    let request = Request::new(path).get(name, &GetParams::default());
    let answer = async {
        client
            .request_text(request.map_err(KubeError::BuildRequest)?)
            .await
    };
    match call(format!("get secrets/{name}"), answer).await {
        Err(error) if error.is_not_found() => Ok(None),
        answer => Ok(TokenSecret::parse(&Zeroizing::new(answer?))),
    }
}

async fn write(client: &Client, name: &str, patch: &Value) -> Result<(), HardeningError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let options = merge(CONTROLLER);
    let patch = Patch::Merge(patch);
    let written = api.patch_metadata(name, &options, &patch);
    call(format!("patch secrets/{name}"), written).await?;
    Ok(())
}

impl Life {
    /// The state of a token that was missing or unusable when it was read at `now`.
    fn missing(before: Option<Self>, now: Timestamp) -> Self {
        let wait = match before {
            Some(Self::Missing { wait, .. }) => wait.saturating_mul(2).min(LONGEST_WAIT),
            _ => FIRST_WAIT,
        };
        Self::Missing {
            next: now.saturating_add(wait).unwrap_or(Timestamp::MAX),
            wait,
        }
    }

    /// Whether less than half of a life is left, or a missing one is to be read again.
    fn is_due(self, now: Timestamp) -> bool {
        match self {
            Self::Ends(end) | Self::Extended(end) => {
                end < now.saturating_add(TTL / 2).unwrap_or(Timestamp::MAX)
            }
            Self::Missing { next, .. } => next <= now,
        }
    }

    /// The later end that it should have, if it should.
    fn extended(self, now: Timestamp) -> Option<Timestamp> {
        let (Self::Ends(end) | Self::Extended(end)) = self else {
            return None;
        };
        let later = now.saturating_add(TTL).unwrap_or(Timestamp::MAX);
        // Seconds are what the Secret says.
        let later = Timestamp::from_second(later.as_second()).ok()?;
        (self.is_due(now) && later > end).then_some(later)
    }
}

/// The Secret of a bootstrap token, without the secret, and without annotations, in one of which
/// kubectl keeps the secret once more.
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
    labels: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct TokenData {
    expiration: Option<ByteString>,
}

impl TokenSecret {
    /// The Secret, and how long the token lives; `None` if it is no token, or cannot be read.
    fn parse(text: &str) -> Option<(Self, Life)> {
        let secret: Self = serde_json::from_str(text).ok()?;
        let labels = secret.metadata.labels.as_ref();
        // Also by a controller before this one: what it extended is ours to end.
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

    /// The patch that has it end then, if it is still as it was read. Our label is on what still has to be ended by us.
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
