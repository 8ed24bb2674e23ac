//! The `KubeadmConfig`s of a cluster, and the order in which they are read.
//!
//! One is read when something depends on it, and kept as long as a Machine or a pool refers to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use node_attestation_core::identifiers::TokenId;

use super::values::{Ground, Value};
use crate::capi::objects::BootstrapConfig;
use crate::shared::visited;
use crate::table::Table;

/// The time before a `KubeadmConfig` is read again that was missing, or is of a pool: its token is replaced from time to
/// time.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// What refers to a `KubeadmConfig`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::capi) enum Referrer {
    /// A Machine with bootstrap data, whose Node Cluster API has not found.
    Joining,
    /// A Machine with bootstrap data and a Node.
    Joined,
    /// A pool.
    Pool,
}

/// The `KubeadmConfig`s that a cluster's objects refer to.
#[derive(Debug, Default)]
pub(super) struct Configs {
    known: Table<BootstrapConfig>,
    /// The names of those to read, each with the time from which it is read; `None`: now.
    queue: BTreeSet<(Referrer, Option<Instant>, Arc<str>)>,
    /// The times from which configurations are read again.
    again: BTreeMap<Arc<str>, Instant>,
}

impl Configs {
    /// The `KubeadmConfig` of this name, if it was read.
    pub(super) fn get(&self, name: &str) -> Option<&BootstrapConfig> {
        self.known.get(name)
    }

    /// The names of those with this token.
    pub(super) fn with_token(&self, token: &TokenId) -> impl Iterator<Item = &str> {
        let configs = self.known.with(Value::Token(token));
        let configs = configs.filter(|(_, config)| config.token.as_ref() == Some(token));
        configs.map(|(name, _)| name)
    }

    /// The names of those that may have this name of a Node written out.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = &str> {
        let configs = self.known.with(Value::NodeName(Ground::Written, name));
        configs.map(|(name, _)| name)
    }

    /// Whether this one is read, if something depends on it.
    pub(super) fn is_due(&self, name: &str, now: Instant) -> bool {
        self.again.get(name).is_none_or(|at| *at <= now)
    }

    /// The names of those to read for such a referrer.
    pub(super) fn due(&self, referrer: Referrer, now: Instant) -> impl Iterator<Item = &str> {
        // The empty name is the first of all.
        let queue = self.queue.range((referrer, None, Arc::from(""))..);
        let queue =
            queue.take_while(move |(of, at, _)| *of == referrer && at.is_none_or(|at| at <= now));
        visited(queue).map(|(_, _, name)| &**name)
    }

    /// Sets whether this one is to be read for each kind of referrer.
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

    /// Keeps one that was read, or notes that it was missing. It has to be queued again.
    pub(super) fn put(
        &mut self,
        name: &str,
        config: Option<BootstrapConfig>,
        is_of_pool: bool,
        now: Instant,
    ) {
        self.unqueue(name);
        if config.is_none() || is_of_pool {
            self.again.insert(name.into(), now + READ_AGAIN);
        }
        if let Some(config) = config {
            self.known.put(name, config);
        }
    }

    /// Forgets one that nothing refers to.
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
    }
}
