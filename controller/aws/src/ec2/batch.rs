//! Questions to EC2, asked together.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use node_attestation_core::refusal::Unavailable;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::bucket::Bucket;
use super::lane::{Answer, Batch, Lane, Next};
use super::{Describe, Ec2, Ec2Settings, InstanceFacts, Outage, Query};
use crate::credentials::{Credentials, CredentialsKey, CredentialsSource};

/// How much is asked of EC2, and how long is waited. The defaults are what the controller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a request waits for another, each anew: machines that are started together do not
    /// come at the same instant.
    pub window: Duration,
    /// How long the first of several waits at most while others come or are expected.
    pub gathering: Duration,
    /// How many calls may be made at once with the same credentials in one region.
    pub burst: u32,
    /// After those, one call in this time. EC2 allows for more (100 at once and 20 a second, filters
    /// and pages included), and others use the account too.
    pub interval: Duration,
    /// How long an instance that runs is remembered.
    pub remembered: Duration,
    /// How long credentials may take.
    pub credentials: Duration,
    /// How long one call may take, whatever its client does.
    pub call: Duration,
    /// How long a request may take once there are credentials to ask with.
    pub wait: Duration,
    /// How many requests may wait with the same credentials in one region.
    pub waiting: usize,
    /// How long EC2 is left alone after a failure; twice as long after each one more.
    pub pause: Duration,
    /// How long it is left alone at most.
    pub longest_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(100),
            gathering: Duration::from_secs(2),
            burst: 10,
            interval: Duration::from_millis(500),
            remembered: Duration::from_secs(10),
            credentials: Duration::from_secs(20),
            call: Duration::from_secs(12),
            wait: Duration::from_secs(30),
            waiting: 4000,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// More than a fleet has tenants and regions in use; those that rest are forgotten first.
const MAX_LANES: usize = 4096;

/// The most pages that are read of one answer. EC2 may send some that are not full, or empty.
const MAX_PAGES: usize = 100;

/// The most instances that are read of one answer: more than a cluster has.
const MAX_FOUND: usize = 20_000;

/// Describes instances, many with one call.
///
/// # Guarantees
///
/// - Requests share a call, and what it finds, only with the same [`CredentialsKey`] and region.
/// - A region or a tenant that does not answer delays no other.
/// - A requester that goes away takes nothing from those that share its call.
/// - What is not known, or does not run, is not remembered: no denial rests on memory, but for one
///   by what an instance that runs had some seconds ago.
#[derive(Clone)]
pub struct Instances {
    shared: Arc<Shared>,
}

struct Shared {
    source: Arc<dyn CredentialsSource>,
    ec2: Arc<dyn Describe>,
    limits: Limits,
    lanes: Mutex<HashMap<LaneKey, Arc<Lane>>>,
}

/// Whose requests share calls.
type LaneKey = (CredentialsKey, String);

/// An instance that will be asked about soon: calls wait for it, for a while. It is not expected any
/// more when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
}

/// The state of a request.
enum Lookup {
    Known(Box<InstanceFacts>),
    Waits(oneshot::Receiver<Answer>),
}

impl Instances {
    /// Asks EC2 with the credentials of `source`.
    pub fn new(source: Arc<dyn CredentialsSource>, settings: Ec2Settings) -> Self {
        Self::with(source, Arc::new(Ec2::new(settings)), Limits::default())
    }

    /// The same, with what stands for EC2, and with other limits.
    pub fn with(
        source: Arc<dyn CredentialsSource>,
        ec2: Arc<dyn Describe>,
        limits: Limits,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                source,
                ec2,
                limits,
                lanes: Mutex::default(),
            }),
        }
    }

    /// What EC2 says of an instance; `None` if it does not know it.
    ///
    /// # Errors
    ///
    /// EC2 could not be asked, or credentials are missing or may not ask.
    pub async fn describe(
        &self,
        account: &str,
        region: &str,
        instance: &str,
    ) -> Result<Option<InstanceFacts>, Unavailable> {
        self.expect(account, region).await?.describe(instance).await
    }

    /// Says that an instance will be asked about once something else is known: what is asked
    /// meanwhile waits for it, and shares its call.
    ///
    /// # Errors
    ///
    /// There are no credentials to ask with.
    pub async fn expect(&self, account: &str, region: &str) -> Result<Reservation, Unavailable> {
        let lane = self.lane(account, region).await?;
        lane.lock().expected += 1;
        Ok(Reservation {
            shared: self.shared.clone(),
            lane,
        })
    }

    /// All instances with these tags.
    ///
    /// # Errors
    ///
    /// As [`describe`](Self::describe); a part of an answer is none.
    pub async fn tagged(
        &self,
        account: &str,
        region: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<Vec<InstanceFacts>, Unavailable> {
        let lane = self.lane(account, region).await?;
        if let Some(outage) = lane.lock().outage(Instant::now()) {
            return Err(outage.into());
        }
        lane.token().await;
        let found = self.shared.ask(&lane, &Query::Tags(tags.clone())).await;
        lane.lock()
            .settle(found.as_ref().err(), &self.shared.limits);
        Ok(found?)
    }

    async fn lane(&self, account: &str, region: &str) -> Result<Arc<Lane>, Unavailable> {
        let limit = self.shared.limits.credentials;
        let credentials = credentials(&*self.shared.source, account, region, limit).await?;
        Ok(self.shared.lane(credentials, region))
    }
}

/// The credentials to ask with, if they are found in time.
pub(super) async fn credentials(
    source: &dyn CredentialsSource,
    account: &str,
    region: &str,
    limit: Duration,
) -> Result<Credentials, Unavailable> {
    let found = timeout(limit, source.credentials(account, region)).await;
    found.map_err(|_| Outage::Credentials {
        region: region.to_owned(),
        code: "none were found in time".to_owned(),
    })?
}

impl Reservation {
    /// What EC2 says of the instance; `None` if it does not know it.
    ///
    /// # Errors
    ///
    /// As [`Instances::describe`].
    pub async fn describe(self, instance: &str) -> Result<Option<InstanceFacts>, Unavailable> {
        let deadline = Instant::now() + self.shared.limits.wait;
        let region = self.lane.region.clone();
        let answer = match self.shared.join(&self.lane, instance)? {
            Lookup::Known(facts) => return Ok(Some(*facts)),
            Lookup::Waits(answer) => answer,
        };
        drop(self);
        let timed_out = || Outage::TimedOut {
            region: region.clone(),
        };
        let answer = timeout_at(deadline, answer)
            .await
            .map_err(|_| timed_out())?;
        // Nobody answers any more where the runtime ends.
        Ok(answer.map_err(|_| timed_out())??)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.lane.lock();
        state.expected = state.expected.saturating_sub(1);
        let last = state.expected == 0;
        drop(state);
        if last {
            self.lane.changed.notify_one();
        }
    }
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instances")
            .field("shared", &self.shared)
            .finish()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("source", &self.source)
            .field("ec2", &self.ec2)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lane(&self, credentials: Credentials, region: &str) -> Arc<Lane> {
        let now = Instant::now();
        let key = (credentials.key, region.to_owned());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.len() >= MAX_LANES && !lanes.contains_key(&key) {
            lanes.retain(|_, lane| !lane.lock().rests(now));
        }
        let bucket = Bucket::new(self.limits.burst, self.limits.interval, now);
        let made = || Arc::new(Lane::new(credentials, region, bucket));
        lanes.entry(key).or_insert_with(made).clone()
    }

    /// Has the request share the next call that has room.
    fn join(self: &Arc<Self>, lane: &Arc<Lane>, instance: &str) -> Result<Lookup, Outage> {
        let now = Instant::now();
        let mut state = lane.lock();
        if let Some(facts) = state.remembered(instance, now, self.limits.remembered) {
            return Ok(Lookup::Known(Box::new(facts.clone())));
        }
        if let Some(outage) = state.outage(now) {
            return Err(outage);
        }
        if state.waiting >= self.limits.waiting {
            return Err(Outage::Busy {
                region: lane.region.clone(),
            });
        }
        let (answer, answered) = oneshot::channel();
        if state.enqueue(instance, answer, now) {
            lane.changed.notify_one();
        }
        if !state.is_served {
            state.is_served = true;
            tokio::spawn(self.clone().serve(lane.clone()));
        }
        Ok(Lookup::Waits(answered))
    }

    /// Calls for one batch after the other, until none is left.
    async fn serve(self: Arc<Self>, lane: Arc<Lane>) {
        loop {
            let next = lane.lock().next(Instant::now(), &self.limits);
            match next {
                Next::Call(batch) => {
                    tokio::spawn(self.clone().call(lane.clone(), batch));
                }
                Next::Wait(Some(until)) => tokio::select! {
                    () = sleep_until(until) => {}
                    () = lane.changed.notified() => {}
                },
                Next::Wait(None) => lane.changed.notified().await,
                Next::Rest => return,
            }
        }
    }

    async fn call(self: Arc<Self>, lane: Arc<Lane>, batch: Batch) {
        let query = Query::Ids(batch.waiters.keys().cloned().collect());
        // In a task of its own: if it panics, the others are still answered.
        let asked = tokio::spawn({
            let (shared, lane) = (self.clone(), lane.clone());
            async move { shared.ask(&lane, &query).await }
        });
        let found = asked.await.unwrap_or_else(|_| {
            Err(Outage::Unreachable {
                region: lane.region.clone(),
                what: "the call ended early",
            })
        });
        let mut state = lane.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.settle(found.as_ref().err(), &self.limits);
        match found {
            Ok(found) => state.deliver(batch, found),
            Err(outage) => {
                state.refuse(batch, &outage);
                // They would only wait for the same.
                for batch in std::mem::take(&mut state.queue) {
                    state.refuse(batch, &outage);
                }
            }
        }
        drop(state);
        lane.changed.notify_one();
    }

    /// All pages of an answer. The first one's token is taken.
    async fn ask(&self, lane: &Lane, query: &Query) -> Result<Vec<InstanceFacts>, Outage> {
        let Lane {
            credentials,
            region,
            ..
        } = lane;
        let mut found = Vec::new();
        let mut next = None;
        for _ in 0..MAX_PAGES {
            if next.is_some() {
                lane.token().await;
            }
            let page = self
                .ec2
                .describe(credentials, region, query, next.as_deref());
            let page = timeout(self.limits.call, page).await;
            let page = page.map_err(|_| Outage::TimedOut {
                region: region.clone(),
            })??;
            found.extend(page.instances);
            next = page.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(found);
            }
            if found.len() > MAX_FOUND {
                break;
            }
        }
        Err(Outage::TooMuch {
            region: region.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
