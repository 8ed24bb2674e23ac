//! The lifetime of bootstrap tokens (`bootstrapTokens: Manage`).
//!
//! Cluster API's bootstrap provider extends a Machine's token only until the Machine has a Node. However, a Machine
//! needs its token as long as it exists, to enroll again after its disk is lost. While attestation is enforced, this
//! module extends the tokens that are needed, and expires them some time after their Machine is deleted.
//!
//! The bootstrap provider replaces a pool's token when less than half of its lifetime is left. The original user data
//! of the pool then no longer works. If every attestation provider of the cluster requires evidence, this module
//! extends the pool's token before the bootstrap provider replaces it, for the life of the pool. In this case, the
//! token is not sufficient to get a certificate.
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
//! - A missing token is read again at increasing intervals of up to one day.
//! - A token is read only when it is first needed, when half of its lifetime has passed, and when it must expire.
//!   Labeled tokens are listed once, without their contents.

mod recreate;
mod secret;
#[cfg(feature = "testing")]
pub mod testing;

pub(crate) use recreate::recreate;
pub use secret::{EXTENDED, POOL_TTL, TTL};

use secret::{Life, SECRET_TYPE, TokenSecret, WAIT_IF_GONE};

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch};
use kube::{Client, Resource as _};
use node_attestation_core::identifiers::TokenId;
use serde_json::Value;
use tokio::time::Instant;

use super::access::{HardeningError, call};
use crate::client::{CONTROLLER, merge};
use crate::memory::{Holding, Share};
use crate::watch::{MetadataOf, metadata_page_of, patched_metadata, text_of_one};

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

/// The time during which a round can start to read tokens. The rest of the round's deadline is for the calls in
/// progress.
const ROUND: Duration = Duration::from_secs(30);

const NAMESPACE: &str = "kube-system";

/// The name prefix of token Secrets.
const NAME_PREFIX: &str = "bootstrap-token-";

/// The managed tokens of one cluster.
#[derive(Debug)]
pub struct Tokens {
    /// The time for which an extended token is kept after the last round that needed it.
    grace: Duration,
    /// The tokens that are needed, and the extended tokens that have not been expired yet.
    known: BTreeMap<TokenId, Known>,
    /// Whether the map includes the tokens that a previous process extended.
    has_former: bool,
    /// Whether the last list had more extended tokens than the limits permit.
    is_truncated: bool,
    /// The needed tokens that belong to pools.
    of_pools: BTreeSet<TokenId>,
    /// Whether to keep a token without a known owner, instead of expiring it.
    spares_unowned: bool,
    /// The memory that the map uses.
    memory: Holding,
}

#[derive(Debug)]
struct Known {
    life: Life,
    /// The lifetime after an extension.
    term: Duration,
    /// Whether the machine or pool of the token was known at some time.
    has_owner: bool,
    /// The time since which the token has not been needed. Monotonic, because the wall clock can be set forward.
    unwanted_since: Option<Duration>,
}

/// The changes to tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenChanges {
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
            is_truncated: false,
            of_pools: BTreeSet::new(),
            spares_unowned: false,
            memory: Share::new("", OWN_MEMORY).holding(),
        }
    }

    /// Sets the needed tokens that belong to pools. These tokens are extended earlier, and for a longer time.
    pub fn set_of_pools(&mut self, tokens: BTreeSet<TokenId>) {
        self.of_pools = tokens;
    }

    /// Sets the tokens whose machines or pools are known. If some owners are unknown (`are_all` is false), any other
    /// token can belong to one of them, and is not expired.
    pub fn set_owned<'a>(&mut self, owned: impl IntoIterator<Item = &'a TokenId>, are_all: bool) {
        for token in owned {
            if let Some(known) = self.known.get_mut(token) {
                known.has_owner = true;
            }
        }
        self.spares_unowned = !are_all;
    }

    /// Charges the memory for the tokens to this namespace.
    pub(crate) fn of_namespace(self, namespace: &str) -> Self {
        self.within(&Share::new(namespace, OWN_MEMORY))
    }

    pub(crate) fn within(self, share: &Share) -> Self {
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
    ) -> Result<TokenChanges, HardeningError> {
        self.round(client, wanted, (now, elapsed), true).await
    }

    /// Extends tokens like [`Tokens::keep`], and does not expire any token. Used while the tokens of pools are unknown.
    ///
    /// # Errors
    ///
    /// Like [`Tokens::keep`].
    pub async fn extend(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        now: SystemTime,
        elapsed: Duration,
    ) -> Result<TokenChanges, HardeningError> {
        let mut kept = TokenChanges::default();
        if let Ok(now) = Timestamp::try_from(now) {
            self.extend_due(client, wanted, (now, elapsed), &mut kept)
                .await?;
        }
        Ok(kept)
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
    ) -> Result<TokenChanges, HardeningError> {
        self.round(client, wanted, (now, elapsed), false).await
    }

    /// The number of extended tokens that [`Tokens::release`] has not expired, except the `wanted` tokens.
    pub(crate) fn left(&self, wanted: &BTreeSet<TokenId>) -> usize {
        let left = self.known.keys();
        left.filter(|token| !wanted.contains(*token)).count()
    }

    /// Expires tokens that are not needed. If `extends` is set, first extends the `wanted` tokens.
    async fn round(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        (now, elapsed): (SystemTime, Duration),
        extends: bool,
    ) -> Result<TokenChanges, HardeningError> {
        let mut kept = TokenChanges::default();
        let Ok(now) = Timestamp::try_from(now) else {
            return Ok(kept);
        };
        self.mark(wanted, elapsed);
        if extends {
            self.extend_due(client, wanted, (now, elapsed), &mut kept)
                .await?;
        }
        self.end_unwanted(client, now, elapsed, &mut kept).await?;
        Ok(kept)
    }

    /// Extends the `wanted` tokens for which it is necessary.
    async fn extend_due(
        &mut self,
        client: &Client,
        wanted: &BTreeSet<TokenId>,
        (now, elapsed): (Timestamp, Duration),
        kept: &mut TokenChanges,
    ) -> Result<(), HardeningError> {
        let begin = Instant::now();
        for token in wanted {
            let before = self.known.get(token);
            if before.is_some_and(|known| !known.life.is_due(now, elapsed, known.term)) {
                continue;
            }
            let before = before.map(|known| known.life);
            // The next round continues with the tokens that have not been read.
            if begin.elapsed() >= ROUND {
                break;
            }
            let of_pool = self.of_pools.contains(token);
            let extended = extend(client, (token, of_pool), before, (now, elapsed)).await;
            if let Some((life, term, is_new)) = unless_of_one_token(extended)? {
                let unwanted_since = None;
                let known = Known {
                    life,
                    term,
                    has_owner: true,
                    unwanted_since,
                };
                self.known.insert(token.clone(), known);
                kept.extended.extend(is_new.then(|| token.clone()));
            }
        }
        Ok(())
    }

    /// Records the time since which each token has not been needed. Drops other clients' tokens that are not needed.
    fn mark(&mut self, wanted: &BTreeSet<TokenId>, elapsed: Duration) {
        let spares_unowned = self.spares_unowned;
        self.known.retain(|token, known| {
            let is_wanted = wanted.contains(token);
            let is_spared = is_wanted || (spares_unowned && !known.has_owner);
            let since = known.unwanted_since.unwrap_or(elapsed);
            known.unwanted_since = (!is_spared).then_some(since);
            is_wanted || matches!(known.life, Life::Extended(_))
        });
    }

    async fn end_unwanted(
        &mut self,
        client: &Client,
        now: Timestamp,
        elapsed: Duration,
        kept: &mut TokenChanges,
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
                    self.is_truncated = true;
                    break;
                }
                let unwanted_since = (!wanted.contains(&token)).then_some(elapsed);
                self.known.entry(token).or_insert(Known {
                    life: Life::Extended(now),
                    term: TTL,
                    has_owner: false,
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

    /// Makes the next [`Tokens::find_former`] read the list again, if the last list was truncated. Returns whether the
    /// list was truncated.
    pub fn lists_again(&mut self) -> bool {
        let is_truncated = mem::take(&mut self.is_truncated);
        self.has_former &= !is_truncated;
        is_truncated
    }
}

/// Returns `None` for a failure that affects only this token, which the next round retries.
fn unless_of_one_token<T>(outcome: Result<T, HardeningError>) -> Result<Option<T>, HardeningError> {
    match outcome {
        Err(HardeningError::Refused { .. }) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Reads a token, and extends it if less than half of its lifetime is left. Extends the token of a pool earlier. Returns
/// its state, its lifetime after an extension, and whether the token was extended.
async fn extend(
    client: &Client,
    (token, of_pool): (&TokenId, bool),
    before: Option<Life>,
    (now, elapsed): (Timestamp, Duration),
) -> Result<(Life, Duration, bool), HardeningError> {
    let name = format!("{NAME_PREFIX}{token}");
    let Some((found, life)) = read(client, &name).await? else {
        return Ok((Life::missing(before, elapsed), TTL, false));
    };
    let (term, end) = if of_pool {
        let term = found.pool_term(life, now);
        (term, life.extended_of_pool(now, term))
    } else {
        (TTL, life.extended(now))
    };
    let Some(end) = end else {
        return Ok((life, term, false));
    };
    let patch = if of_pool {
        found.ending_of_pool(end, term)
    } else {
        found.ending_at(end, true)
    };
    write(client, &name, &patch).await?;
    Ok((Life::Extended(end), term, true))
}

/// Makes the token expire now, if it exists and has not expired. If its expiry time is later than this controller can
/// set, the token is not changed, because another client has extended it.
async fn end(client: &Client, token: &TokenId, now: Timestamp) -> Result<(), HardeningError> {
    let name = format!("{NAME_PREFIX}{token}");
    let found = read(client, &name).await?;
    // The Secret stores whole seconds.
    let ends = Timestamp::from_second(now.as_second()).unwrap_or(now);
    if let Some((found, Life::Ends(end) | Life::Extended(end))) = found
        && (now..=found.latest_end(now)).contains(&end)
    {
        write(client, &name, &found.ending_at(ends, false)).await?;
    }
    Ok(())
}

/// Reads a Secret as text, because the client logs responses that it cannot decode. The text is wiped after use. Returns
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

#[cfg(test)]
mod tests;
