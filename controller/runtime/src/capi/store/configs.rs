//! The `KubeadmConfig`s of a cluster, and the order in which they are read.
//!
//! A config is read when an answer depends on it, and is kept as long as a Machine or a pool refers to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use node_attestation_core::identifiers::TokenId;

use super::values::{Ground, Value};
use crate::capi::api_discovery::NotServed;
use crate::capi::objects::BootstrapConfig;
use crate::shared::visited;
use crate::table::Table;

/// The interval between two reads of a `KubeadmConfig` that is missing, is not served, or belongs to a pool. A pool's
/// token is replaced from time to time.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// The type of object that refers to a `KubeadmConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::capi) enum Referrer {
    /// A Machine that has bootstrap data, but whose Node Cluster API has not found.
    Joining,
    /// A Machine with bootstrap data and a Node.
    Joined,
    /// A pool.
    Pool,
}

/// The `KubeadmConfig`s to which a cluster's objects refer.
#[derive(Debug, Default)]
pub(super) struct Configs {
    known: Table<BootstrapConfig>,
    /// The names of the configs to read, each with the earliest time for its read. `None` means immediately.
    queue: BTreeSet<(Referrer, Option<Instant>, Arc<str>)>,
    /// The earliest times for repeated reads.
    again: BTreeMap<Arc<str>, Instant>,
    /// The configs whose version was not served at the last read. These configs can exist.
    unserved: BTreeSet<Arc<str>>,
}

impl Configs {
    /// The `KubeadmConfig` with this name, if it was read.
    pub(super) fn get(&self, name: &str) -> Option<&BootstrapConfig> {
        self.known.get(name)
    }

    /// Whether the config is unknown because its version was not served at the last read.
    pub(super) fn is_unserved(&self, name: &str) -> bool {
        self.unserved.contains(name)
    }

    /// The names of the configs with this token.
    pub(super) fn with_token(&self, token: &TokenId) -> impl Iterator<Item = &str> {
        let configs = self.known.with(Value::Token(token));
        let configs = configs.filter(|(_, config)| config.token.as_ref() == Some(token));
        configs.map(|(name, _)| name)
    }

    /// The names of the configs that can contain this literal Node name.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = &str> {
        let configs = self.known.with(Value::NodeName(Ground::Written, name));
        configs.map(|(name, _)| name)
    }

    /// Whether the config must be read if an answer depends on it.
    pub(super) fn is_due(&self, name: &str, now: Instant) -> bool {
        self.again.get(name).is_none_or(|at| *at <= now)
    }

    /// The names of the configs that are due for this type of referrer. A config that was never read is included only
    /// if its name comes after `after`. The empty string sorts first.
    pub(super) fn due(
        &self,
        referrer: Referrer,
        after: &str,
        now: Instant,
    ) -> impl Iterator<Item = &str> {
        let after = Bound::Excluded((referrer, None, Arc::from(after)));
        let queue = self.queue.range((after, Bound::Unbounded));
        let queue =
            queue.take_while(move |(of, at, _)| *of == referrer && at.is_none_or(|at| at <= now));
        visited(queue).map(|(_, _, name)| &**name)
    }

    /// Sets for each type of referrer whether the config must be read.
    pub(super) fn queue(&mut self, name: &str, wanted: [(Referrer, bool); 3]) {
        let at = self.again.get(name).copied();
        for (referrer, is_wanted) in wanted {
            let entry = (referrer, at, name.into());
            if is_wanted {
                self.queue.insert(entry);
            } else {
                self.queue.remove(&entry);
            }
        }
    }

    /// Stores a config, or records that it is missing or not served. The caller must queue it again.
    pub(super) fn put(
        &mut self,
        name: &str,
        config: Result<Option<BootstrapConfig>, NotServed>,
        is_of_pool: bool,
        now: Instant,
    ) {
        self.unqueue(name);
        if !matches!(config, Ok(Some(_))) || is_of_pool {
            self.again.insert(name.into(), now + READ_AGAIN);
        }
        match config {
            Ok(Some(config)) => {
                self.known.put(name, config);
            }
            Err(NotServed) if self.known.get(name).is_none() => {
                self.unserved.insert(name.into());
            }
            Ok(None) | Err(NotServed) => {}
        }
    }

    /// Removes a config to which no object refers.
    pub(super) fn remove(&mut self, name: &str) {
        self.unqueue(name);
        self.known.remove(name);
    }

    fn unqueue(&mut self, name: &str) {
        use Referrer::{Joined, Joining, Pool};
        self.queue(
            name,
            [Joining, Joined, Pool].map(|referrer| (referrer, false)),
        );
        self.again.remove(name);
        self.unserved.remove(name);
    }
}
