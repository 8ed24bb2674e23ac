//! How long bootstrap tokens live (`bootstrapTokens: Manage`).
//!
//! Cluster API's bootstrap provider extends a Machine's token until the Machine has a Node, and
//! replaces a pool's. The proposal ("Changes to token rotation") wants a pool's token to live as
//! long as the pool; and a Machine's is needed as long as the Machine, to enrol again after the
//! loss of its disk. Here the tokens that are wanted are extended while they are wanted.
//!
//! A token that is wanted no longer is let run out, within [`TTL`]: nothing is deleted, so no right
//! to delete Secrets of `kube-system` is needed, and nothing is lost if the Machine was only away
//! from our sight. What such a token can do meanwhile is what every token can: file requests that
//! prove nothing, and read.
//!
//! # Guarantees
//!
//! - Nothing is ever created, shortened, or given an end that it did not have.
//! - The secret half is in the answer of a read, as in every read of a Secret, and is not taken out
//!   of it: the type that it is read into has no field for it. Writes are answered with metadata.
//! - A token is read when it is first wanted and when half of its time has passed, and not between.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, Resource};
use serde::Deserialize;

use super::access::{FIELD_MANAGER, HardeningError, call};
use crate::inventory::TokenId;

/// How long a token lives on when nobody extends it: longer than the controller is away for an
/// update, shorter than a night.
pub const TTL: Duration = Duration::from_hours(6);

const NAMESPACE: &str = "kube-system";

/// The type of a Secret that is a bootstrap token.
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// The tokens of one cluster that are kept alive.
#[derive(Debug, Default)]
pub struct Tokens {
    known: BTreeMap<TokenId, Life>,
}

/// What was found of a token when it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Ends(Timestamp),
    Endless,
}

/// What was done about the wanted tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Those that were extended.
    pub extended: Vec<TokenId>,
    /// Those that are not there. Whoever made them must make others.
    pub missing: Vec<TokenId>,
    /// Those whose Secret is no bootstrap token, or has an end that cannot be read.
    pub unusable: Vec<TokenId>,
}

impl Tokens {
    /// Extends those of the `wanted` tokens that have less than half of [`TTL`] left, each to no
    /// later than the time until which it is wanted.
    ///
    /// # Errors
    ///
    /// One could not be read or written; those before it are done.
    pub async fn keep(
        &mut self,
        client: &Client,
        wanted: &BTreeMap<TokenId, SystemTime>,
        now: SystemTime,
    ) -> Result<Kept, HardeningError> {
        let mut kept = Kept::default();
        self.known.retain(|token, _| wanted.contains_key(token));
        let Ok(now) = Timestamp::try_from(now) else {
            return Ok(kept);
        };
        let api = Api::namespaced(client.clone(), NAMESPACE);
        for (token, until) in wanted {
            let until = Timestamp::try_from(*until).unwrap_or(Timestamp::MAX);
            if self.known.get(token).is_none_or(|life| life.is_short(now)) {
                self.extend(&api, token, until, now, &mut kept).await?;
            }
        }
        Ok(kept)
    }

    async fn extend(
        &mut self,
        api: &Api<TokenSecret>,
        token: &TokenId,
        until: Timestamp,
        now: Timestamp,
        kept: &mut Kept,
    ) -> Result<(), HardeningError> {
        let name = format!("bootstrap-token-{token}");
        let object = format!("secrets/{name}");
        let Some(found) = call("get", &object, api.get_opt(&name)).await? else {
            kept.missing.push(token.clone());
            return Ok(());
        };
        let Some(life) = found.life() else {
            kept.unusable.push(token.clone());
            return Ok(());
        };
        let life = match life.extended(until, now) {
            Some(end) => {
                let patch = found.ending(end);
                let options = PatchParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(&patch);
                let written = api.patch_metadata(&name, &options, &patch);
                call("patch", &object, written).await?;
                kept.extended.push(token.clone());
                Life::Ends(end)
            }
            None => life,
        };
        self.known.insert(token.clone(), life);
        Ok(())
    }
}

impl Life {
    /// Whether less than half of a life is left.
    fn is_short(self, now: Timestamp) -> bool {
        match self {
            Self::Ends(end) => end < now.saturating_add(TTL / 2).unwrap_or(Timestamp::MAX),
            Self::Endless => false,
        }
    }

    /// The later end that it should have, if it should.
    fn extended(self, until: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let Self::Ends(end) = self else {
            return None;
        };
        let later = now.saturating_add(TTL).unwrap_or(Timestamp::MAX).min(until);
        // Seconds are what the Secret says.
        let later = Timestamp::from_second(later.as_second()).ok()?;
        (self.is_short(now) && later > end).then_some(later)
    }
}

/// The Secret of a bootstrap token, without the secret.
#[derive(Debug, Clone, Deserialize)]
struct TokenSecret {
    metadata: ObjectMeta,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    data: TokenData,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct TokenData {
    expiration: Option<ByteString>,
}

impl TokenSecret {
    /// How long it lives; `None` if it is no token, or cannot be read.
    fn life(&self) -> Option<Life> {
        if self.kind != SECRET_TYPE {
            return None;
        }
        match &self.data.expiration {
            None => Some(Life::Endless),
            Some(text) => std::str::from_utf8(&text.0)
                .ok()
                .and_then(|text| text.parse().ok())
                .map(Life::Ends),
        }
    }

    /// The patch that has it end then, if it is still as it was read.
    fn ending(&self, end: Timestamp) -> serde_json::Value {
        serde_json::json!({
            "metadata": {"resourceVersion": self.metadata.resource_version},
            "data": {"expiration": ByteString(end.to_string().into_bytes())},
        })
    }
}

impl Resource for TokenSecret {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Secret".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "secrets".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests;
