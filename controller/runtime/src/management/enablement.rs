//! `KubeletAuthentication`s for the Clusters that authorize attestation providers themselves.
//!
//! For a Cluster that has the annotation, or enables the variable, the controller creates a `KubeletAuthentication`,
//! and keeps its `spec.authorizedAttestors` equal to the Cluster's value. The controller never changes a
//! `KubeletAuthentication` that a user created. Removing the annotation has no effect: attestation stays enforced until
//! the resource is deleted.
//!
//! # Guarantees
//!
//! - Only a few writes run concurrently, each with a deadline. Namespaces take turns, and within a namespace, the
//!   Cluster that has waited longest is first. Therefore a Cluster that changes constantly does not delay other
//!   Clusters.
//! - If the API server rejects a step, the controller creates an Event on the Cluster. The step is retried after the
//!   Cluster changes, and otherwise at long intervals. If the Event fails, the step is first retried a few times.

mod step;

use std::collections::{HashMap, VecDeque};
use std::mem::{Discriminant, discriminant};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::future::FutureExt as _;
use kubelet_attestation::backoff::Backoff;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::step::{Step, StepOutcome, step, take};
use super::Shared;
use super::kept_authentications::KeptAuthentication;
use crate::capi::{Cluster, ObjectKey, OwnAttestors};

/// The limit on concurrent steps.
const AT_ONCE: usize = 4;

/// The delay after a change, because objects change in bursts. This is also the minimum interval between two searches.
const GATHER: Duration = Duration::from_secs(1);

/// The interval between two checks if no object changes.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// The first delay between two steps for a Cluster.
const PAUSE: Duration = Duration::from_secs(2);

/// The maximum delay if the API server does not respond.
const LONGEST_OUTAGE: Duration = Duration::from_mins(1);

/// The delay before a rejected step is retried and reported again. Kubernetes keeps Events for one hour. It is also the
/// maximum delay before the controller restores a field that another client keeps changing.
const REFUSED: Duration = Duration::from_mins(10);

/// The number of attempts at a rejected step, each with its Event. After that, the long delay applies even without an
/// Event. The attempts take one minute. A namespace that is being deleted rejects every Event.
const REPORT_TRIES: u32 = 5;

/// The delay between a rejected step that created an Event, and a different step.
const ANOTHER: Duration = Duration::from_secs(30);

/// The steps for the Clusters that authorize attestation providers themselves.
pub(super) struct Enablement {
    shared: Arc<Shared>,
    changes: watch::Receiver<()>,
    schedule: Schedule,
    tasks: JoinSet<(ObjectKey, StepOutcome)>,
}

/// The `KubeletAuthentication` exists but is not stored in memory, so its Cluster has no step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotInMemory;

/// The order of the steps. A search visits all Clusters, so searches are at least [`GATHER`] apart, and steps do not
/// trigger searches.
#[derive(Debug)]
struct Schedule {
    /// The time of the next search for steps.
    search_at: Instant,
    /// The Clusters whose step was due in the last search, in order.
    queue: VecDeque<ObjectKey>,
    /// The last step for each Cluster.
    last: HashMap<ObjectKey, Last>,
    /// The number of running steps.
    running: usize,
}

/// The last step for a Cluster.
#[derive(Debug)]
struct Last {
    wanted: Wanted,
    /// The number of times that this step was tried.
    tries: u32,
    /// The start time if the step is running, and otherwise its end time.
    at: Instant,
    /// The outcome. `None` while the step is running.
    outcome: Option<StepOutcome>,
}

/// The cause of a step. Steps that differ in one of these fields are different steps.
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
            schedule: Schedule::new(Instant::now()),
            tasks: JoinSet::new(),
            shared,
        }
    }

    /// Schedules a check.
    pub(super) fn something_changed(&mut self) {
        self.schedule.search_by(Instant::now() + GATHER);
    }

    /// Waits until the next check is due.
    pub(super) async fn due(&mut self) {
        while !self.schedule.has_next() {
            tokio::select! {
                () = sleep_until(self.schedule.search_at) => return,
                Ok(()) = self.changes.changed() => self.something_changed(),
                Some(Ok((key, outcome))) = self.tasks.join_next() => {
                    self.schedule.ended(&key, outcome, Instant::now());
                }
            }
        }
    }

    /// Starts the steps that are due, up to the limit. `known` returns the `KubeletAuthentication` of a Cluster.
    pub(super) fn look(
        &mut self,
        known: impl Fn(&ObjectKey) -> Result<Option<Arc<KeptAuthentication>>, NotInMemory>,
    ) {
        let now = Instant::now();
        let objects = &self.shared.objects;
        let version = objects.cluster_version();
        let step = |key: &ObjectKey, cluster: &Cluster| {
            let known = known(key).ok()?;
            let known = known.as_ref().map(|known| &***known);
            let step = step(cluster, known, version.as_deref())?;
            let wanted = Wanted {
                cluster_uid: cluster.uid.clone(),
                attestors: cluster.attestors.clone(),
                step: discriminant(&step),
            };
            Some((wanted, step))
        };
        if self.schedule.search_at <= now {
            let mut wanted = Vec::new();
            objects.each_cluster(|key, cluster| {
                let step = step(key, cluster);
                wanted.extend(step.map(|(step, _)| (key.clone(), step)));
            });
            if objects.is_ready() {
                self.schedule
                    .forget(|key| objects.with_cluster(key, |_| ()).is_none());
            }
            self.schedule.found(wanted, now);
        }
        let mut due = Vec::new();
        while let Some(key) = self.schedule.next() {
            // The Cluster might have changed after the search.
            let next = objects.with_cluster(&key, |cluster| step(&key, cluster));
            if let Some((wanted, step)) = next.flatten()
                && let Some(is_repeated) = self.schedule.begin(&key, wanted.clone(), now)
            {
                due.push((key, wanted.cluster_uid, step, is_repeated));
            }
        }
        for (key, cluster_uid, step, is_repeated) in due {
            self.start(key, cluster_uid, step, is_repeated);
        }
    }

    fn start(&mut self, key: ObjectKey, cluster_uid: String, step: Step, is_repeated: bool) {
        let taken = take(
            self.shared.clone(),
            key.clone(),
            cluster_uid,
            step,
            is_repeated,
        );
        self.tasks.spawn(async move {
            // A panic payload can contain secrets, so it is not logged.
            let taken = AssertUnwindSafe(taken).catch_unwind().await;
            (key, taken.unwrap_or(StepOutcome::Unavailable))
        });
    }
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self {
            search_at: now,
            queue: VecDeque::new(),
            last: HashMap::new(),
            running: 0,
        }
    }

    /// Schedules the next search for this time or earlier.
    fn search_by(&mut self, at: Instant) {
        self.search_at = self.search_at.min(at);
    }

    /// Replaces the queue with the steps that a search found.
    fn found(&mut self, wanted: Vec<(ObjectKey, Wanted)>, now: Instant) {
        self.search_at = now + LOOK_AGAIN;
        let mut due = Vec::new();
        for (key, wanted) in wanted {
            let last = self.last.get(&key);
            match due_at(last, &wanted, now) {
                Some(at) if at <= now => due.push(DueStep {
                    last: last.map(|last| last.at),
                    key,
                }),
                Some(at) => self.search_at = self.search_at.min(at.max(now + GATHER)),
                None => {}
            }
        }
        let mut namespaces: HashMap<String, LastOfNamespace> = HashMap::new();
        for (key, last) in &self.last {
            let namespace = namespaces.entry(key.namespace.clone()).or_default();
            namespace.running += usize::from(last.outcome.is_none());
            namespace.at = namespace.at.max(Some(last.at));
        }
        self.queue = in_turn(due, &namespaces).into();
    }

    /// Removes the Clusters that no longer exist.
    fn forget(&mut self, is_gone: impl Fn(&ObjectKey) -> bool) {
        self.last.retain(|key, _| !is_gone(key));
    }

    /// Whether another step can start.
    fn has_next(&self) -> bool {
        self.running < AT_ONCE && !self.queue.is_empty()
    }

    /// The Cluster whose step is next, if another step can start.
    fn next(&mut self) -> Option<ObjectKey> {
        self.has_next().then(|| self.queue.pop_front())?
    }

    /// Starts this step if it is due. Returns whether the step is a repetition.
    fn begin(&mut self, key: &ObjectKey, wanted: Wanted, now: Instant) -> Option<bool> {
        let last = self.last.get(key);
        match due_at(last, &wanted, now) {
            Some(at) if at <= now => {}
            Some(at) => {
                self.search_by(at.max(now + GATHER));
                return None;
            }
            None => return None,
        }
        let tries = last.filter(|last| last.wanted == wanted);
        let tries = tries.map_or(0, |last| last.tries);
        let last = Last {
            wanted,
            tries: tries.saturating_add(1),
            at: now,
            outcome: None,
        };
        self.last.insert(key.clone(), last);
        self.running += 1;
        Some(tries > 0)
    }

    /// Records the end of a step.
    fn ended(&mut self, key: &ObjectKey, outcome: StepOutcome, now: Instant) {
        if let Some(last) = self.last.get_mut(key) {
            (last.at, last.outcome) = (now, Some(outcome));
        }
        self.running = self.running.saturating_sub(1);
        // The Cluster might have changed since the step started. Its next step is not due before this search.
        self.search_by(now + PAUSE);
    }
}

/// A step that can start now.
#[derive(Debug)]
struct DueStep {
    /// The time of the last step for this Cluster.
    last: Option<Instant>,
    key: ObjectKey,
}

/// The last steps in a namespace.
#[derive(Debug, Clone, Copy, Default)]
struct LastOfNamespace {
    running: usize,
    /// The time of the last step.
    at: Option<Instant>,
}

/// The Clusters in the order of their steps.
///
/// The order is: namespaces with the fewest steps, then the namespace whose last step is the oldest and, within a
/// namespace, the Cluster whose last step is the oldest.
fn in_turn(mut due: Vec<DueStep>, namespaces: &HashMap<String, LastOfNamespace>) -> Vec<ObjectKey> {
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
    // A stable sort keeps the order within a namespace.
    in_turn.sort_by_key(|(steps, last, _)| (*steps, *last));
    in_turn.into_iter().map(|(_, _, one)| one.key).collect()
}

/// The time at which a step is due. `None` if a step is running.
fn due_at(last: Option<&Last>, wanted: &Wanted, now: Instant) -> Option<Instant> {
    let Some(last) = last else {
        return Some(now);
    };
    let outcome = last.outcome?;
    let doubled = |longest| {
        Backoff {
            first: PAUSE,
            longest,
        }
        .after(last.tries)
    };
    let wait = match (last.wanted == *wanted, outcome) {
        (true, StepOutcome::Written) => doubled(REFUSED),
        (true, StepOutcome::Unavailable) => doubled(LONGEST_OUTAGE),
        (true, StepOutcome::Unreported) if last.tries < REPORT_TRIES => doubled(LONGEST_OUTAGE),
        (true, StepOutcome::Refused | StepOutcome::Unreported) => REFUSED,
        (false, StepOutcome::Written | StepOutcome::Unavailable) => PAUSE,
        (false, StepOutcome::Refused | StepOutcome::Unreported) => ANOTHER,
    };
    Some(last.at + wait)
}

#[cfg(test)]
mod tests;
