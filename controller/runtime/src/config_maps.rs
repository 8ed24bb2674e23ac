//! `ConfigMaps` in the management cluster that many requests need at the same time.
//!
//! # Guarantees
//!
//! - Concurrent callers share one read. The result, which can be an error, is valid for 5 seconds.
//! - A `ConfigMap` is fetched completely only after a change.
//! - The clusters together run only a few fetches at a time, and take turns by namespace. Each cluster runs one fetch
//!   at a time. The memory of each cluster is limited, and other clusters cannot use its share.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::Api;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::unshared::Unshared;
use tokio::time::{Instant, timeout};

use crate::capi::ObjectKey;
use crate::client::ClusterAccess;
use crate::memory::{Holding, Share};
use crate::shared::Turnstile;
use crate::turns::{FairTurns, Line, TurnLimits};
use crate::watch::{metadata_of_one, readable_one_of};

/// The maximum age of a result. The delay is not noticeable, and if 1,000 machines join together, only a few calls are
/// necessary.
const FRESH: Duration = Duration::from_secs(5);

/// The deadline for reading all `ConfigMaps` of one cluster: 64 calls, or more after changes.
const DEADLINE: Duration = Duration::from_secs(20);

/// The limit on concurrent fetches for all clusters. Each fetch can hold several megabytes of JSON until it is parsed.
const FETCHES: TurnLimits = TurnLimits {
    all: 4,
    of_cluster: 1,
};

static PROCESS: LazyLock<FairTurns> = LazyLock::new(|| FairTurns::new(FETCHES));

/// The number of bytes for an entry in addition to its texts: two pointers with their lengths, and an allocation.
const ENTRY_LEN: usize = 64;

/// Parses the entries of a `ConfigMap`. The text of a binary entry is empty. The API server limits keys to 253
/// characters: letters, digits, `-`, `_` and `.`.
pub type Parse<T> = fn(&ObjectKey, BTreeMap<String, String>) -> T;

/// The `ConfigMaps` in one namespace. The contents can be a few seconds old.
#[derive(derive_more::Debug)]
#[debug("ConfigMaps({keys:?})")]
pub struct ConfigMaps<T> {
    client: Client,
    keys: Vec<ObjectKey>,
    parse: Parse<T>,
    share: Share,
    line: Line,
    /// The lock is held during a read. Only the clusters of one namespace use the lock.
    kept: Turnstile<BTreeMap<ObjectKey, Kept<T>>>,
    /// Only the clusters in one namespace use this lock.
    last: Unshared<Option<(Instant, ReadConfigMaps<T>)>>,
}

/// The outcome of reading all `ConfigMaps`.
pub type ReadConfigMaps<T> = Result<Arc<[Arc<T>]>, ConfigMapUnread>;

/// A `ConfigMap` could not be read. The text contains the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigMapUnread(String);

/// A version of a `ConfigMap`: its UID and its `resourceVersion`.
type Version = (Option<String>, Option<String>);

struct Kept<T> {
    version: Version,
    content: Arc<T>,
    _memory: Holding,
}

impl<T> ConfigMaps<T> {
    /// Creates a reader for the `ConfigMaps` with these names, without a call.
    pub fn new(
        management: &ClusterAccess,
        namespace: &str,
        names: &[String],
        parse: Parse<T>,
    ) -> Self {
        let client = management.client().clone();
        Self::among(&PROCESS, client, namespace, names, parse)
    }

    fn among(
        turns: &FairTurns,
        client: Client,
        namespace: &str,
        names: &[String],
        parse: Parse<T>,
    ) -> Self {
        let key = |name: &String| ObjectKey::new(namespace, name.as_str());
        Self {
            client,
            keys: names.iter().map(key).collect(),
            parse,
            share: Share::of_lists(namespace),
            line: turns.line(&ObjectKey::new(namespace, names.join(","))),
            kept: Turnstile::default(),
            last: Unshared::default(),
        }
    }

    /// The contents of the `ConfigMaps`, in the order of their names.
    ///
    /// # Errors
    ///
    /// Returns the error for the first `ConfigMap` that could not be read.
    pub async fn read(&self) -> ReadConfigMaps<T> {
        let mut kept = self.kept.lock().await;
        let last = self.last.lock().clone();
        if let Some((at, outcome)) = last
            && at.elapsed() < FRESH
        {
            return outcome;
        }
        let reading = async {
            let mut contents = Vec::with_capacity(self.keys.len());
            for key in &self.keys {
                contents.push(self.read_one(key, &mut kept).await?);
            }
            Ok(contents.into())
        };
        let outcome = timeout(DEADLINE, reading).await;
        let outcome = outcome.unwrap_or_else(|_| {
            let namespace = self.keys.first().map(|key| key.namespace.as_str());
            Err(ConfigMapUnread(format!(
                "cannot read the ConfigMaps of namespace {} within {} s",
                namespace.unwrap_or_default(),
                DEADLINE.as_secs()
            )))
        });
        *self.last.lock() = Some((Instant::now(), outcome.clone()));
        outcome
    }

    /// The outcome of the last read. `None` before the first read. Does not read anything.
    pub fn last_outcome(&self) -> Option<ReadConfigMaps<T>> {
        self.last
            .lock()
            .as_ref()
            .map(|(_, outcome)| outcome.clone())
    }

    async fn read_one(
        &self,
        key: &ObjectKey,
        kept: &mut BTreeMap<ObjectKey, Kept<T>>,
    ) -> Result<Arc<T>, ConfigMapUnread> {
        let _turn = self.line.turn().await;
        let failed = |error: kube::Error| {
            let why = error_chain(&error);
            ConfigMapUnread(format!("cannot read ConfigMap {key}: {why}"))
        };
        let absent = || ConfigMapUnread(format!("ConfigMap {key} does not exist"));
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.namespace);
        if let Some(known) = kept.get(key) {
            let now = metadata_of_one(&api, &key.name).await.map_err(failed)?;
            let now = now.ok_or_else(absent)?;
            if version(&now.metadata) == known.version {
                return Ok(known.content.clone());
            }
        }
        // The previous content is no longer needed. Its memory becomes available for the new content.
        kept.remove(key);
        let found = readable_one_of(&api, &key.name).await.map_err(failed)?;
        let found = found.ok_or_else(absent)?;
        let version = version(&found.metadata);
        let mut data = found.data.unwrap_or_default();
        let binary = found.binary_data.unwrap_or_default().into_keys();
        data.extend(binary.map(|name| (name, String::new())));
        let mut memory = self.share.holding();
        if !memory.resize(len(&data)) {
            return Err(ConfigMapUnread(format!(
                "ConfigMap {key} exceeds the available memory for ConfigMaps"
            )));
        }
        let content = Arc::new((self.parse)(key, data));
        let new = Kept {
            version,
            content: content.clone(),
            _memory: memory,
        };
        kept.insert(key.clone(), new);
        Ok(content)
    }
}

fn version(metadata: &ObjectMeta) -> Version {
    (metadata.uid.clone(), metadata.resource_version.clone())
}

/// The approximate memory that the entries use.
fn len(data: &BTreeMap<String, String>) -> usize {
    data.iter()
        .map(|(key, value)| key.len() + value.len() + ENTRY_LEN)
        .sum()
}

#[cfg(test)]
mod tests;
