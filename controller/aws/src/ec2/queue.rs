//! The requests that wait for a shared call.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::channel::{Lane, Remembered, State, remember};
use super::{InstanceFacts, Limits, MAX_IDS, OutageKind};

/// The requests with the same credentials in one region.
pub(super) type Requests = Lane<Batches>;

#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Those that wait for their call; the last one takes requests while it has room.
    pub(super) queue: VecDeque<Batch>,
    /// Whether a task sees to the queue.
    pub(super) is_served: bool,
    pub(super) in_flight: usize,
    pub(super) waiting: usize,
    /// How many will be asked about soon.
    pub(super) expected: usize,
    pub(super) remembered: Remembered<String, InstanceFacts>,
}

#[derive(Debug)]
pub(super) struct Batch {
    opened: Instant,
    /// When an instance was added last.
    latest: Instant,
    pub(super) waiters: BTreeMap<String, Vec<oneshot::Sender<Answer>>>,
}

pub(super) type Answer = Result<Option<InstanceFacts>, OutageKind>;

/// What a lane does next.
pub(super) enum Next {
    Call(Batch),
    /// Until then, or until something changes.
    Wait(Option<Instant>),
    Rest,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.waiters.len() >= MAX_IDS
    }
}

impl State<Batches> {
    /// What to do; after a failure, EC2 is tried with one call at a time.
    pub(super) fn next(&mut self, now: Instant, limits: &Limits) -> Next {
        let Some(first) = self.own.queue.front() else {
            self.own.is_served = false;
            return Next::Rest;
        };
        let full_time = first.opened + limits.gathering;
        let end = if self.own.expected == 0 {
            full_time.min(first.latest + limits.window)
        } else {
            full_time
        };
        if !first.is_full() && now < end {
            return Next::Wait(Some(end));
        }
        if self.trouble.is_any() && self.own.in_flight > 0 {
            return Next::Wait(None);
        }
        if let Err(ready) = self.take(now) {
            return Next::Wait(Some(ready));
        }
        match self.own.queue.pop_front() {
            Some(batch) => {
                self.own.in_flight += 1;
                Next::Call(batch)
            }
            None => Next::Rest,
        }
    }
}

impl Batches {
    /// Has the next call that has room ask about an instance; says whether it is full now.
    pub(super) fn enqueue(
        &mut self,
        instance: &str,
        waiter: oneshot::Sender<Answer>,
        now: Instant,
    ) -> bool {
        self.waiting += 1;
        let has_room =
            |batch: &&mut Batch| batch.waiters.contains_key(instance) || !batch.is_full();
        if let Some(batch) = self.queue.iter_mut().find(has_room) {
            let waiters = batch.waiters.entry(instance.to_owned()).or_default();
            if waiters.is_empty() {
                batch.latest = now;
            }
            waiters.push(waiter);
            return batch.is_full();
        }
        self.queue.push_back(Batch {
            opened: now,
            latest: now,
            waiters: BTreeMap::from([(instance.to_owned(), vec![waiter])]),
        });
        false
    }

    pub(super) fn deliver(&mut self, batch: Batch, found: Vec<InstanceFacts>) {
        let found = found.into_iter().map(|facts| (facts.id.clone(), facts));
        let mut found: HashMap<_, _> = found.collect();
        for (instance, waiters) in batch.waiters {
            let facts = found.remove(&instance);
            self.answer(waiters, &Ok(facts.clone()));
            if let Some(facts) = facts.filter(InstanceFacts::is_running) {
                remember(&mut self.remembered, instance, facts);
            }
        }
    }

    pub(super) fn refuse(&mut self, batch: Batch, outage: &OutageKind) {
        for waiters in batch.waiters.into_values() {
            self.answer(waiters, &Err(outage.clone()));
        }
    }

    fn answer(&mut self, waiters: Vec<oneshot::Sender<Answer>>, answer: &Answer) {
        self.waiting = self.waiting.saturating_sub(waiters.len());
        for waiter in waiters {
            // Who does not wait any more has gone away.
            waiter.send(answer.clone()).ok();
        }
    }
}
