//! `KubeletAuthentication`s for the Clusters that authorize attestors themselves.
//!
//! For a Cluster with the annotation, or with the variable enabled, the controller creates a `KubeletAuthentication`,
//! and its `spec.authorizedAttestors` follows the Cluster. The controller never changes a `KubeletAuthentication` that
//! a user created. Removing the annotation has no effect: enforcement ends when the resource is deleted.
//!
//! # Guarantees
//!
//! - Only a few writes run concurrently, each with a deadline. Namespaces take turns, and within a namespace the
//!   Cluster that has waited the longest is first. So a Cluster that changes constantly does not delay others.
//! - If the API server refuses, the controller creates an Event on the Cluster. The step is retried when the Cluster
//!   changes, and otherwise at long intervals.

mod step;

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use node_attestation_core::crd::KubeletAuthentication;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::step::{Outcome, Step, step, take};
use super::Shared;
use crate::capi::{ObjectKey, OwnAttestors};

/// The limit of concurrent steps.
const AT_ONCE: usize = 4;

/// The wait after a change, because objects change in bursts.
const GATHER: Duration = Duration::from_secs(1);

/// The interval between checks without changes.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// The first wait between two steps for a Cluster.
const PAUSE: Duration = Duration::from_secs(2);

/// The longest wait if the API server does not respond.
const LONGEST_OUTAGE: Duration = Duration::from_mins(1);

/// The wait before a refused step is retried and reported again. Kubernetes keeps Events for one hour. It is also the
/// longest wait before a field is restored that another client keeps changing.
const REFUSED: Duration = Duration::from_mins(10);

/// The wait before a different step after a refusal, because the refusal created an Event.
const ANOTHER: Duration = Duration::from_secs(30);

/// The steps for the Clusters that authorize attestors themselves.
pub(super) struct Enablement {
    shared: Arc<Shared>,
    changes: watch::Receiver<()>,
    look_at: Instant,
    /// The last step for each Cluster.
    last: HashMap<ObjectKey, Last>,
    tasks: JoinSet<(ObjectKey, Outcome)>,
}

/// The last step for a Cluster.
#[derive(Debug)]
struct Last {
    wanted: Wanted,
    /// The number of attempts of this step.
    tries: u32,
    /// The time of the start or, afterwards, of the end.
    at: Instant,
    /// The outcome. `None` while the step is running.
    outcome: Option<Outcome>,
}

/// The cause of a step. If any field differs, it is a different step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    cluster_uid: String,
    attestors: OwnAttestors,
    step: Discriminant<Step>,
}

impl Enablement {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            changes: shared.objects.cluster_changes(),
            look_at: Instant::now(),
            last: HashMap::new(),
            tasks: JoinSet::new(),
            shared,
        }
    }

    /// Schedules a check.
    pub(super) fn something_changed(&mut self) {
        self.look_at = self.look_at.min(Instant::now() + GATHER);
    }

    /// Waits until the next check is due.
    pub(super) async fn due(&mut self) {
        loop {
            tokio::select! {
                () = sleep_until(self.look_at) => return,
                Ok(()) = self.changes.changed() => self.something_changed(),
                Some(Ok((key, outcome))) = self.tasks.join_next() => self.ended(&key, outcome),
            }
        }
    }

    /// Starts the steps that are due, within the limit. `known` returns the `KubeletAuthentication` of a Cluster.
    pub(super) fn look(
        &mut self,
        known: impl Fn(&ObjectKey) -> Option<Arc<KubeletAuthentication>>,
    ) {
        let now = Instant::now();
        self.look_at = now + LOOK_AGAIN;
        if !self.shared.objects.is_ready() {
            return;
        }
        let version = self.shared.objects.cluster_version();
        let clusters: HashMap<_, _> = self.shared.objects.clusters().into_iter().collect();
        self.last.retain(|key, _| clusters.contains_key(key));
        let mut due = Vec::new();
        for (key, cluster) in clusters {
            let Some(step) = step(&cluster, known(&key).as_deref(), version.as_deref()) else {
                continue;
            };
            let last = self.last.get(&key);
            let wanted = Wanted {
                cluster_uid: cluster.uid,
                attestors: cluster.attestors,
                step: discriminant(&step),
            };
            match due_at(last, &wanted, now) {
                Some(at) if at <= now => due.push(DueStep {
                    last: last.map(|last| last.at),
                    key,
                    wanted,
                    step,
                }),
                Some(at) => self.look_at = self.look_at.min(at),
                None => {}
            }
        }
        let room = AT_ONCE.saturating_sub(self.tasks.len());
        let mut namespaces: HashMap<String, LastOfNamespace> = HashMap::new();
        for (key, last) in &self.last {
            let namespace = namespaces.entry(key.namespace.clone()).or_default();
            namespace.running += usize::from(last.outcome.is_none());
            namespace.at = namespace.at.max(Some(last.at));
        }
        for one in first_in_turn(due, &namespaces, room) {
            self.start(one, now);
        }
    }

    fn start(&mut self, due: DueStep, now: Instant) {
        let DueStep {
            key, wanted, step, ..
        } = due;
        let tries = self.last.get(&key).filter(|last| last.wanted == wanted);
        let tries = tries.map_or(0, |last| last.tries);
        let taken = take(
            self.shared.clone(),
            key.clone(),
            wanted.cluster_uid.clone(),
            step,
            tries > 0,
        );
        let last = Last {
            wanted,
            tries: tries.saturating_add(1),
            at: now,
            outcome: None,
        };
        self.last.insert(key.clone(), last);
        self.tasks.spawn(async move {
            // The payload of a panic can contain anything, including secrets.
            let taken = AssertUnwindSafe(taken).catch_unwind().await;
            (key, taken.unwrap_or(Outcome::Unavailable))
        });
    }

    fn ended(&mut self, key: &ObjectKey, outcome: Outcome) {
        if let Some(last) = self.last.get_mut(key) {
            (last.at, last.outcome) = (Instant::now(), Some(outcome));
        }
        // Other steps can be waiting because of the limit.
        self.look_at = Instant::now();
    }
}

/// A step that can start now.
#[derive(Debug)]
struct DueStep {
    /// The time of the last step for this Cluster.
    last: Option<Instant>,
    key: ObjectKey,
    wanted: Wanted,
    step: Step,
}

/// The last steps of a namespace.
#[derive(Debug, Clone, Copy, Default)]
struct LastOfNamespace {
    running: usize,
    /// The time of the last step.
    at: Option<Instant>,
}

/// The steps to start, up to `room`.
///
/// The order is: namespaces with the fewest steps, then the namespace whose last step is the oldest and, within a
/// namespace, the Cluster whose last step is the oldest.
fn first_in_turn(
    mut due: Vec<DueStep>,
    namespaces: &HashMap<String, LastOfNamespace>,
    room: usize,
) -> Vec<DueStep> {
    due.sort_by(|one, other| (one.last, &one.key).cmp(&(other.last, &other.key)));
    let mut steps: HashMap<String, usize> = HashMap::new();
    let mut in_turn: Vec<_> = due
        .into_iter()
        .map(|one| {
            let namespace = &one.key.namespace;
            let last = namespaces.get(namespace).copied().unwrap_or_default();
            let steps = steps.entry(namespace.clone()).or_insert(last.running);
            *steps += 1;
            (*steps, last.at, one)
        })
        .collect();
    // A stable sort, which keeps the order within a namespace.
    in_turn.sort_by_key(|(steps, last, _)| (*steps, *last));
    in_turn.truncate(room);
    in_turn.into_iter().map(|(_, _, one)| one).collect()
}

/// The time at which a step is due. `None` while the current step is running.
fn due_at(last: Option<&Last>, wanted: &Wanted, now: Instant) -> Option<Instant> {
    let Some(last) = last else {
        return Some(now);
    };
    let outcome = last.outcome?;
    let doubled = PAUSE.saturating_mul(2_u32.saturating_pow(last.tries));
    let wait = match (last.wanted == *wanted, outcome) {
        (true, Outcome::Written) => doubled.min(REFUSED),
        (true, Outcome::Unavailable) => doubled.min(LONGEST_OUTAGE),
        (true, Outcome::Refused) => REFUSED,
        (false, Outcome::Written | Outcome::Unavailable) => PAUSE,
        (false, Outcome::Refused) => ANOTHER,
    };
    Some(last.at + wait)
}

#[cfg(test)]
mod tests;
