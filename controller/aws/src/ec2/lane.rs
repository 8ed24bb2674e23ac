//! What is asked with the same credentials in one region: who waits, and how EC2 fares.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::bucket::Bucket;
use super::circuit_breaker::CircuitBreaker;
use super::{InstanceFacts, Limits, MAX_IDS, Outage};
use crate::credentials::Credentials;

/// More instances than join or renew within the time that one is remembered.
const MAX_REMEMBERED: usize = 10_000;

/// The requests with the same credentials in one region.
pub(super) struct Lane {
    pub(super) credentials: Credentials,
    pub(super) region: String,
    state: Mutex<State>,
    /// A batch is full, or a call has ended.
    pub(super) changed: Notify,
}

pub(super) struct State {
    /// Those that wait for their call; the last one takes requests while it has room.
    pub(super) queue: VecDeque<Batch>,
    /// Whether a task sees to the queue.
    pub(super) is_served: bool,
    pub(super) in_flight: usize,
    pub(super) waiting: usize,
    /// How many will be asked about soon.
    pub(super) expected: usize,
    remembered: HashMap<String, (Instant, InstanceFacts)>,
    bucket: Bucket,
    /// While there is any, EC2 is tried with one call at a time.
    trouble: CircuitBreaker,
}

pub(super) struct Batch {
    opened: Instant,
    /// When an instance was added last.
    latest: Instant,
    pub(super) waiters: BTreeMap<String, Vec<oneshot::Sender<Answer>>>,
}

pub(super) type Answer = Result<Option<InstanceFacts>, Outage>;

/// What a lane does next.
pub(super) enum Next {
    Call(Batch),
    /// Until then, or until something changes.
    Wait(Option<Instant>),
    Rest,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn new(credentials: Credentials, region: &str, bucket: Bucket) -> Self {
        Self {
            credentials,
            region: region.to_owned(),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                is_served: false,
                in_flight: 0,
                waiting: 0,
                expected: 0,
                remembered: HashMap::new(),
                bucket,
                trouble: CircuitBreaker::default(),
            }),
            changed: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn token(&self) {
        loop {
            let taken = self.lock().bucket.take(Instant::now());
            let Err(ready) = taken else {
                return;
            };
            sleep_until(ready).await;
        }
    }
}

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.waiters.len() >= MAX_IDS
    }
}

impl State {
    pub(super) fn next(&mut self, now: Instant, limits: &Limits) -> Next {
        let Some(first) = self.queue.front() else {
            self.is_served = false;
            return Next::Rest;
        };
        let full_time = first.opened + limits.gathering;
        let end = if self.expected == 0 {
            full_time.min(first.latest + limits.window)
        } else {
            full_time
        };
        if !first.is_full() && now < end {
            return Next::Wait(Some(end));
        }
        if self.trouble.is_any() && self.in_flight > 0 {
            return Next::Wait(None);
        }
        if let Err(ready) = self.bucket.take(now) {
            return Next::Wait(Some(ready));
        }
        match self.queue.pop_front() {
            Some(batch) => {
                self.in_flight += 1;
                Next::Call(batch)
            }
            None => Next::Rest,
        }
    }

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

    pub(super) fn remembered(
        &self,
        instance: &str,
        now: Instant,
        age: Duration,
    ) -> Option<&InstanceFacts> {
        let (time, facts) = self.remembered.get(instance)?;
        (now.duration_since(*time) < age).then_some(facts)
    }

    pub(super) fn outage(&self, now: Instant) -> Option<Outage> {
        self.trouble.outage(now)
    }

    /// Learns how a call ended.
    pub(super) fn settle(&mut self, outage: Option<&Outage>, limits: &Limits) {
        let pause = (limits.pause, limits.longest_pause);
        self.trouble.settle(outage, Instant::now(), pause);
    }

    pub(super) fn deliver(&mut self, batch: Batch, found: Vec<InstanceFacts>) {
        let now = Instant::now();
        let found = found.into_iter().map(|facts| (facts.id.clone(), facts));
        let mut found: HashMap<_, _> = found.collect();
        for (instance, waiters) in batch.waiters {
            let facts = found.remove(&instance);
            self.waiting = self.waiting.saturating_sub(waiters.len());
            for waiter in waiters {
                // Who does not wait any more has gone away.
                waiter.send(Ok(facts.clone())).ok();
            }
            if let Some(facts) = facts.filter(InstanceFacts::is_running) {
                self.remember(instance, facts, now);
            }
        }
    }

    pub(super) fn remember(&mut self, instance: String, facts: InstanceFacts, now: Instant) {
        if self.remembered.len() >= MAX_REMEMBERED {
            // They are worth seconds.
            self.remembered.clear();
        }
        self.remembered.insert(instance, (now, facts));
    }

    pub(super) fn refuse(&mut self, batch: Batch, outage: &Outage) {
        for waiter in batch.waiters.into_values().flatten() {
            self.waiting = self.waiting.saturating_sub(1);
            waiter.send(Err(outage.clone())).ok();
        }
    }

    /// Whether it can be dropped without loss.
    pub(super) fn rests(&self, now: Instant) -> bool {
        !self.is_served
            && self.in_flight == 0
            && self.expected == 0
            && self.bucket.is_full(now)
            && self.outage(now).is_none()
    }
}
