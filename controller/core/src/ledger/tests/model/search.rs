//! Searches all states.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures::future::{BoxFuture, FutureExt as _};
use kubelet_attestation::names::ProviderId;

use super::world::{Published, Replica, Scenario, Seen, Shared, digest};
use crate::crd::RevokedNodeCredentialsSpec;
use crate::ledger::Claimant;
use crate::refusal::Refusal;
use crate::testing::records::{LONGEST, at};

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Outcome {
    Issued,
    Refused(&'static str),
}

/// The result of a search.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) states: usize,
    pub(super) outcomes: BTreeSet<[Outcome; 2]>,
}

/// An invariant that was violated, and the calls that led to the violation.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) what: String,
    pub(super) path: Vec<String>,
}

/// A possible next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// The task makes its next call.
    Call(usize),
    /// All writes reach the cache of the task's replica.
    Deliver(usize),
    /// The replica of the task stops, and the other replica takes over its request.
    Crash(usize),
}

const ACTIONS: [Action; 6] = [
    Action::Call(0),
    Action::Call(1),
    Action::Deliver(0),
    Action::Deliver(1),
    Action::Crash(0),
    Action::Crash(1),
];

/// Tries every order of the actions.
pub(super) fn search(scenario: &Scenario) -> Result<Found, Violation> {
    let scenario = Arc::new(scenario.clone());
    let mut found = Found::default();
    let mut reached = HashSet::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let mut run = Run::new(&scenario);
        let possible = path.iter().all(|action| run.act(*action));
        if !possible || !reached.insert(run.digest()) {
            continue;
        }
        found.states += 1;
        let violation = |what| Violation {
            what,
            path: path.iter().map(|action| format!("{action:?}")).collect(),
        };
        run.check().map_err(violation)?;
        if let [Some(first), Some(second)] = [0, 1].map(|task| run.outcome(task)) {
            found.outcomes.insert([first, second]);
            run.recover().map_err(violation)?;
            continue;
        }
        for action in ACTIONS {
            let mut next = path.clone();
            next.push(action);
            open.push(next);
        }
    }
    Ok(found)
}

type Served = Result<(), Refusal>;

struct Task {
    seen: Arc<Mutex<Seen>>,
    /// The running task. `None` after the task has finished.
    running: Option<BoxFuture<'static, Served>>,
    outcome: Option<Outcome>,
}

struct Run {
    scenario: Arc<Scenario>,
    shared: Arc<Mutex<Shared>>,
    tasks: [Task; 2],
    crashed: bool,
}

impl Run {
    fn new(scenario: &Arc<Scenario>) -> Self {
        let shared = Arc::new(Mutex::new(Shared::new(scenario)));
        let tasks = [0, 1].map(|task| Task::start(scenario, &shared, (task, 0), 0));
        Self {
            scenario: Arc::clone(scenario),
            shared,
            tasks,
            crashed: false,
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    /// Executes the action. Returns whether the action was possible.
    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Call(task) => {
                let before = self.shared().calls;
                self.tasks[task].poll();
                self.shared().calls > before
            }
            Action::Deliver(task) => {
                let written = self.shared().log.len();
                let mut seen = self.tasks[task].seen.lock().unwrap();
                let behind = seen.cached < written && self.tasks[task].running.is_some();
                seen.cached = written;
                behind
            }
            Action::Crash(task) => {
                if self.crashed || self.tasks[task].running.is_none() {
                    return false;
                }
                self.crashed = true;
                // The cache of the other replica has the state that its own task requires.
                let cached = self.tasks[1 - task].seen.lock().unwrap().cached;
                self.tasks[task] = Task::start(&self.scenario, &self.shared, (task, 1), cached);
                true
            }
        }
    }

    fn outcome(&self, task: usize) -> Option<Outcome> {
        self.tasks[task].outcome
    }

    fn digest(&self) -> u64 {
        let tasks = self.tasks.each_ref().map(|task| {
            let seen = task.seen.lock().unwrap();
            (seen.cached, seen.history, task.outcome)
        });
        digest((self.shared().digest, tasks, self.crashed))
    }

    fn check(&self) -> Result<(), String> {
        let shared = self.shared();
        one_record_a_name(&shared)?;
        one_opening_a_generation(&shared)?;
        certificates_have_records(&shared)?;
        one_live_identity(&shared)?;
        self.renewing_certificates_are_valid(&shared)
    }

    /// Checks the certificates with which nodes renew. Until a node uses its next certificate, its current certificate
    /// must remain valid.
    fn renewing_certificates_are_valid(&self, shared: &Shared) -> Result<(), String> {
        let now = shared.now();
        let records = now.values().map(|stored| &stored.record);
        let revoked = RevokedNodeCredentialsSpec::of_records(records, LONGEST, at(1));
        for claim in &self.scenario.claims {
            if let Claimant::Renewal(uid) = claim.claimant
                && revoked.refuses(uid)
            {
                return Err(format!("{uid} is revoked, and the node has no other"));
            }
        }
        Ok(())
    }

    /// Tries every request once more, in turn, with current caches.
    fn recover(&mut self) -> Result<(), String> {
        for task in [0, 1] {
            let written = self.shared().log.len();
            self.tasks[task] = Task::start(&self.scenario, &self.shared, (task, 2), written);
            while self.tasks[task].outcome.is_none() {
                self.act(Action::Deliver(task));
                self.tasks[task].poll();
            }
        }
        self.check()?;
        for (task, claim) in self.tasks.iter().zip(&self.scenario.claims) {
            let is_renewal = matches!(claim.claimant, Claimant::Renewal(_));
            if is_renewal && task.outcome != Some(Outcome::Issued) {
                return Err(format!("a renewal has no certificate: {:?}", task.outcome));
            }
        }
        let shared = self.shared();
        let mut live = BTreeMap::<ProviderId, usize>::new();
        for stored in shared.now().into_values() {
            if stored.record.is_live() {
                *live.entry(stored.record.holder.provider_id).or_default() += 1;
            }
        }
        match live.iter().find(|(_, records)| **records > 1) {
            Some((machine, _)) => Err(format!("{machine} has two live records for good")),
            None => Ok(()),
        }
    }
}

impl Task {
    fn start(
        scenario: &Arc<Scenario>,
        shared: &Arc<Mutex<Shared>>,
        (task, life): (usize, u8),
        cached: usize,
    ) -> Self {
        let seen = Arc::new(Mutex::new(Seen { cached, history: 0 }));
        let replica = Replica {
            shared: Arc::clone(shared),
            seen: Arc::clone(&seen),
        };
        let claim = scenario.claims[task].clone();
        let random = 2 * life + u8::try_from(task).unwrap();
        let mut task = Self {
            seen,
            running: Some(replica.serve(claim, random).boxed()),
            outcome: None,
        };
        // The task runs until its first call.
        task.poll();
        task
    }

    fn poll(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let Poll::Ready(served) = running.poll_unpin(&mut Context::from_waker(Waker::noop()))
        else {
            return;
        };
        self.running = None;
        self.outcome = Some(match served {
            Ok(()) => Outcome::Issued,
            Err(Refusal::Deny(denial)) => Outcome::Refused(denial.reason()),
            Err(Refusal::Retry(deferral)) => Outcome::Refused(deferral.reason()),
            Err(Refusal::Fail(failure)) => Outcome::Refused(failure.reason()),
        });
    }
}

fn one_record_a_name(shared: &Shared) -> Result<(), String> {
    for (index, record) in shared.log.iter().enumerate() {
        let former = shared.log.iter().take(index);
        let former = former.rev().find(|one| one.node_name == record.node_name);
        let Some(former) = former else { continue };
        if former.uid != record.uid {
            return Err(format!("{} had a record already", record.node_name));
        }
        if former.generation > record.generation {
            return Err(format!("{} goes back in time", record.node_name));
        }
    }
    Ok(())
}

fn one_opening_a_generation(shared: &Shared) -> Result<(), String> {
    for one in &shared.published {
        for other in &shared.published {
            let same_machine = one.claim.assurance == other.claim.assurance;
            let is_renewal = |one: &Published| matches!(one.claim.claimant, Claimant::Renewal(_));
            let same_key = one.claim.key == other.claim.key;
            let same = same_machine && (same_key || is_renewal(one) && is_renewal(other));
            if one.uid == other.uid && !same {
                return Err(format!("{} is of two keys or machines", one.uid));
            }
        }
    }
    Ok(())
}

fn certificates_have_records(shared: &Shared) -> Result<(), String> {
    let now = shared.now();
    for published in &shared.published {
        let record = now.get(&published.claim.node_name);
        let has = record.is_some_and(|stored| {
            stored.record.uid == published.uid.record
                && stored.record.generation >= published.uid.generation
        });
        if !has {
            return Err(format!("{} has no record", published.uid));
        }
    }
    Ok(())
}

fn one_live_identity(shared: &Shared) -> Result<(), String> {
    let now = shared.now();
    let mut live = BTreeMap::<_, BTreeSet<_>>::new();
    for published in &shared.published {
        let Some(stored) = now.get(&published.claim.node_name) else {
            continue;
        };
        if stored.record.is_live() && stored.record.certificate_uid() == published.uid {
            let machine = &published.claim.assurance.identity().provider_id;
            live.entry(machine).or_default().insert(published.uid);
        }
    }
    match live.iter().find(|(_, uids)| uids.len() > 1) {
        Some((machine, _)) => Err(format!("{machine} has two certificates in force")),
        None => Ok(()),
    }
}
