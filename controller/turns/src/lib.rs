//! Locks and turns that tenants share: calls, lookups, requests from Clusters, and CA signatures.
//!
//! All limits on concurrent work in the controller and in its signers use these turns. A plain semaphore serves its
//! callers in the order of arrival, so the Clusters of one tenant could delay all other Clusters.
//!
//! # Guarantees
//!
//! - The namespace with the fewest running turns gets the next turn. If several namespaces have equally few running
//!   turns, the namespace whose last turn is the oldest gets the next turn. Within the namespace, the next Cluster is
//!   selected in the same way. The callers of one Cluster are served in the order of arrival.
//! - While another namespace has a line, a namespace can occupy at most half of the turns. A single namespace can
//!   occupy all turns.
//! - While several namespaces have lines, the last sixteenth of the turns, and at least one turn, is reserved for
//!   namespaces without a running turn. Therefore two namespaces together cannot occupy all turns if four or more turns
//!   exist. With fewer turns, a third namespace waits for the end of a turn. Only work that does not call a tenant is
//!   allowed to have so few turns.
//! - A caller that stops waiting does not take a turn. A turn ends when it is dropped.
//! - The time for which the lock is held grows with the logarithm of the number of lines.

#![cfg_attr(
    test,
    expect(clippy::disallowed_types, reason = "no tenant shares a lock of a test")
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::shared::{Lock, Shared, visit};

pub mod shared;

/// The maximum length of an owner's name that is kept, which equals the maximum length of an object name.
const MAX_NAME_LEN: usize = 253;

/// The divisor for the turns that are reserved for namespaces without a running turn, rounded up. Otherwise, two
/// namespaces could occupy all turns, and a third namespace would have to wait until one of the turns ends, for example
/// at the deadline of a call.
const RESERVED_PART: usize = 16;

/// The owner of a line: a Cluster, or a CA.
pub trait Owner: Debug {
    /// The namespace. Empty without a management cluster.
    fn namespace(&self) -> &str;

    /// The name of the owner in the namespace.
    fn name(&self) -> &str;
}

/// The namespace and the name of an owner.
#[derive(Debug, Clone)]
struct Key {
    namespace: String,
    name: String,
}

impl Key {
    /// The key of an owner. A long name is replaced with its hash, because names are compared and copied under the
    /// lock. If two owners in the same namespace have the same hash, they share one line.
    fn of(owner: &impl Owner) -> Self {
        let name = owner.name();
        let name = if name.len() > MAX_NAME_LEN {
            let mut hasher = DefaultHasher::new();
            name.hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        } else {
            name.to_owned()
        };
        Self {
            namespace: owner.namespace().to_owned(),
            name,
        }
    }
}

/// The limits on running turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnLimits {
    /// The limit for all owners together.
    pub all: usize,
    /// The limit for one Cluster, or for one CA.
    pub of_cluster: usize,
}

/// Turns that rotate through the namespaces, and then through the Clusters. Clones share them.
#[derive(Debug, Clone)]
pub struct FairTurns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: TurnLimits,
    state: Shared<State>,
}

/// The queue of one owner. Lines with the same namespace and name are the same line.
#[derive(Debug)]
pub struct Line {
    turns: FairTurns,
    owner: Key,
}

/// A turn. The turn ends when this value is dropped.
#[must_use = "a turn ends when it is dropped"]
#[derive(Debug)]
pub struct Turn {
    line: Line,
    ticket: u64,
}

impl FairTurns {
    /// Creates turns with these limits.
    pub fn new(limits: TurnLimits) -> Self {
        Self(Arc::new(Inner {
            limits,
            state: Shared::new(Lock::Turns, State::default()),
        }))
    }

    /// Whether no owner has a line.
    pub fn is_idle(&self) -> bool {
        self.0.state.read(|state| state.namespaces.is_empty())
    }

    /// Returns the line of an owner.
    pub fn line(&self, owner: &impl Owner) -> Line {
        self.line_of(Key::of(owner))
    }

    fn line_of(&self, owner: Key) -> Line {
        self.0.state.write(|state| state.join(&owner));
        Line {
            turns: self.clone(),
            owner,
        }
    }
}

impl Line {
    /// Waits for a turn.
    pub async fn turn(&self) -> Turn {
        let (turn, granted) = self.wait();
        // The wait cannot fail, because the sender is dropped only after it is used.
        let _ = granted.await;
        turn
    }

    /// Takes a turn if it can start immediately.
    pub fn try_turn(&self) -> Option<Turn> {
        let (turn, mut granted) = self.wait();
        granted.try_recv().is_ok().then_some(turn)
    }

    fn wait(&self) -> (Turn, oneshot::Receiver<()>) {
        let line = self.clone();
        let (sender, granted) = oneshot::channel();
        let inner = &self.turns.0;
        let wait = |state: &mut State| state.wait(&self.owner, sender, inner.limits);
        let ticket = inner.state.write(wait);
        (Turn { line, ticket }, granted)
    }
}

impl Clone for Line {
    fn clone(&self) -> Self {
        self.turns.line_of(self.owner.clone())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let inner = &self.turns.0;
        inner
            .state
            .write(|state| state.leave(&self.owner, inner.limits));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Line { turns, owner } = &self.line;
        let Inner { limits, state } = &*turns.0;
        state.write(|state| state.end(owner, self.ticket, *limits));
    }
}

/// The number of running turns, and the sequence number of the last turn, which shows how long the namespace or Cluster
/// has waited.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    running: usize,
    last: u64,
}

impl Progress {
    fn begin(&mut self, number: u64) {
        self.running += 1;
        self.last = number;
    }

    fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }
}

/// The order of the next turns. The first entry is next.
type Ready = BTreeSet<(usize, u64, String)>;

fn rank(progress: Progress, name: &str) -> (usize, u64, String) {
    (progress.running, progress.last, name.to_owned())
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// The number of the last turn. Always even.
    last: u64,
    last_ticket: u64,
    namespaces: BTreeMap<String, Namespace>,
    /// The namespaces with a Cluster that is ready for a turn.
    ready: Ready,
}

#[derive(Debug, Default)]
struct Namespace {
    progress: Progress,
    // Boxed, because the first entry in a map allocates space for 11 entries.
    clusters: BTreeMap<String, Box<Cluster>>,
    /// The Clusters with a waiting caller that are below their limit.
    ready: Ready,
}

#[derive(Debug, Default)]
struct Cluster {
    /// The number of lines with this key.
    lines: usize,
    progress: Progress,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl State {
    /// Adds a line. The new line is placed after all lines except the line with the last turn, so the repeated creation
    /// of a line gives no advantage.
    fn join(&mut self, key: &Key) {
        let progress = Progress {
            running: 0,
            last: self.last.saturating_sub(1),
        };
        let new = || Namespace {
            progress,
            ..Namespace::default()
        };
        let namespace = self.namespaces.entry(key.namespace.clone());
        let clusters = &mut namespace.or_insert_with(new).clusters;
        let new = || {
            Box::new(Cluster {
                progress,
                ..Cluster::default()
            })
        };
        clusters.entry(key.name.clone()).or_insert_with(new).lines += 1;
    }

    fn leave(&mut self, key: &Key, limits: TurnLimits) {
        let Some(namespace) = self.namespaces.get_mut(&key.namespace) else {
            return;
        };
        let Some(cluster) = namespace.clusters.get_mut(&key.name) else {
            return;
        };
        cluster.lines = cluster.lines.saturating_sub(1);
        if cluster.lines > 0 {
            return;
        }
        // This Cluster has no waiting or running turns, because each turn belongs to a line.
        namespace.clusters.remove(&key.name);
        if namespace.clusters.is_empty() {
            self.namespaces.remove(&key.namespace);
            self.grant(limits);
        }
    }

    fn wait(&mut self, key: &Key, sender: oneshot::Sender<()>, limits: TurnLimits) -> u64 {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        self.change(key, limits, |_, cluster| {
            cluster.waiting.insert(ticket, sender);
        });
        self.grant(limits);
        ticket
    }

    /// Ends a turn, or the wait for a turn.
    fn end(&mut self, key: &Key, ticket: u64, limits: TurnLimits) {
        let has_run = self.change(key, limits, |namespace, cluster| {
            let has_run = cluster.waiting.remove(&ticket).is_none();
            if has_run {
                namespace.end();
                cluster.progress.end();
            }
            has_run
        });
        if has_run == Some(true) {
            self.running = self.running.saturating_sub(1);
            self.grant(limits);
        }
    }

    /// Starts all turns that can start now.
    fn grant(&mut self, limits: TurnLimits) {
        while self.running < limits.all {
            visit();
            let is_alone = self.namespaces.len() < 2;
            let (most, reserved) = if is_alone {
                (limits.all, 0)
            } else {
                (limits.all.div_ceil(2), limits.all.div_ceil(RESERVED_PART))
            };
            let are_reserved = self.running >= limits.all.saturating_sub(reserved);
            let can_begin = |running: usize| running < most && (running == 0 || !are_reserved);
            let next = self.ready.first();
            let Some((_, _, namespace)) = next.filter(|(running, ..)| can_begin(*running)) else {
                return;
            };
            let clusters = self.namespaces.get(namespace).map(|found| &found.ready);
            let Some((_, _, cluster)) = clusters.and_then(Ready::first) else {
                return;
            };
            let key = Key {
                namespace: namespace.clone(),
                name: cluster.clone(),
            };
            self.last += 2;
            let number = self.last;
            let next = self.change(&key, limits, |namespace, cluster| {
                namespace.begin(number);
                cluster.progress.begin(number);
                cluster.waiting.pop_first()
            });
            self.running += 1;
            if let Some((_, sender)) = next.flatten() {
                // If the receiver no longer exists, its turn has already ended.
                let _ = sender.send(());
            }
        }
    }

    /// Changes a Cluster, and updates its position in the order.
    fn change<T>(
        &mut self,
        key: &Key,
        limits: TurnLimits,
        change: impl FnOnce(&mut Progress, &mut Cluster) -> T,
    ) -> Option<T> {
        let namespace = self.namespaces.get_mut(&key.namespace)?;
        let cluster = namespace.clusters.get_mut(&key.name)?;
        self.ready.remove(&rank(namespace.progress, &key.namespace));
        namespace.ready.remove(&rank(cluster.progress, &key.name));
        let changed = change(&mut namespace.progress, cluster);
        let is_ready = !cluster.waiting.is_empty() && cluster.progress.running < limits.of_cluster;
        if is_ready {
            namespace.ready.insert(rank(cluster.progress, &key.name));
        }
        if !namespace.ready.is_empty() {
            self.ready.insert(rank(namespace.progress, &key.namespace));
        }
        Some(changed)
    }
}

#[cfg(test)]
mod tests;
