//! Questions to EC2, asked together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::Unavailable;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::channel::{CallLimits, Channel, recall};
use super::queue::{Answer, Batch, Batches, Next, Requests};
use super::{Describe, Ec2, Ec2Settings, InstanceFacts, OutageKind, Query};
use crate::credentials::CredentialsSource;

/// How much is asked of EC2, and how long is waited. The defaults are what the controller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a request waits for another, each anew: machines that are started together do not
    /// come at the same instant.
    pub window: Duration,
    /// How long the first of several waits at most while others come or are expected.
    pub gathering: Duration,
    /// How many requests may wait with the same credentials in one region.
    pub waiting: usize,
    /// The limits of the calls that they share.
    pub calls: CallLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(100),
            gathering: Duration::from_secs(2),
            waiting: 4000,
            // EC2 allows for more (100 at once and 20 a second, filters and pages included), and
            // others use the account too. Only an instance that runs is remembered.
            calls: CallLimits {
                rate: Rate {
                    burst: 10,
                    every: Duration::from_millis(500),
                },
                remembered: Duration::from_secs(10),
                credentials: Duration::from_secs(20),
                call: Duration::from_secs(12),
                wait: Duration::from_secs(30),
                pause: Duration::from_secs(1),
                longest_pause: Duration::from_secs(30),
            },
        }
    }
}

/// The most pages that are read of one answer. EC2 may send some that are not full, or empty.
const MAX_PAGES: usize = 100;

/// The most instances that are read of one answer: more than a cluster has.
const MAX_FOUND: usize = 20_000;

/// Describes instances, many with one call.
///
/// # Guarantees
///
/// - Requests share a call, and what it finds, only with the same credentials and region.
/// - A region or a tenant that does not answer delays no other.
/// - A requester that goes away takes nothing from those that share its call.
/// - What is not known, or does not run, is not remembered: no denial rests on memory, but for one
///   by what an instance that runs had some seconds ago.
#[derive(Debug, Clone)]
pub struct Instances {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ec2: Arc<dyn Describe>,
    limits: Limits,
    channel: Channel<Batches>,
}

/// An instance that will be asked about soon: calls wait for it, for a while. It is not expected any
/// more when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    shared: Arc<Shared>,
    lane: Arc<Requests>,
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
                ec2,
                limits,
                channel: Channel::new(source, limits.calls),
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
    pub(crate) async fn expect(
        &self,
        account: &str,
        region: &str,
    ) -> Result<Reservation, Unavailable> {
        let lane = self.shared.channel.lane(account, region).await?;
        lane.lock().own.expected += 1;
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
    pub(crate) async fn tagged(
        &self,
        account: &str,
        region: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<Vec<InstanceFacts>, Unavailable> {
        let lane = self.shared.channel.lane(account, region).await?;
        let well = lane.lock().trouble.check(Instant::now());
        well.map_err(|outage| outage.at(region))?;
        lane.token().await;
        let found = self.shared.ask(&lane, &Query::Tags(tags.clone())).await;
        lane.settle(found.as_ref().err());
        found.map_err(|outage| outage.at(region))
    }
}

impl Reservation {
    /// What EC2 says of the instance; `None` if it does not know it.
    ///
    /// # Errors
    ///
    /// As [`Instances::describe`].
    pub(crate) async fn describe(
        self,
        instance: &str,
    ) -> Result<Option<InstanceFacts>, Unavailable> {
        let lane = self.lane.clone();
        let answer = self.answer(instance).await;
        answer.map_err(|outage| outage.at(&lane.region))
    }

    async fn answer(self, instance: &str) -> Answer {
        let deadline = Instant::now() + self.shared.limits.calls.wait;
        let answer = self.shared.join(&self.lane, instance)?;
        drop(self);
        let answer = timeout_at(deadline, answer).await.ok();
        // Nobody answers any more where the runtime ends.
        let answer = answer.and_then(Result::ok);
        answer.unwrap_or(Err(OutageKind::TimedOut))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.lane.lock();
        state.own.expected = state.own.expected.saturating_sub(1);
        let last = state.own.expected == 0;
        drop(state);
        if last {
            self.lane.changed.notify_one();
        }
    }
}

impl Shared {
    /// Has the request share the next call that has room.
    fn join(
        self: &Arc<Self>,
        lane: &Arc<Requests>,
        instance: &str,
    ) -> Result<oneshot::Receiver<Answer>, OutageKind> {
        let now = Instant::now();
        let (answer, answered) = oneshot::channel();
        let mut state = lane.lock();
        let age = self.limits.calls.remembered;
        if let Some(facts) = recall(&state.own.remembered, &instance.to_owned(), age) {
            answer.send(Ok(Some(facts))).ok();
            return Ok(answered);
        }
        state.trouble.check(now)?;
        let own = &mut state.own;
        if own.waiting >= self.limits.waiting {
            return Err(OutageKind::Busy);
        }
        if own.enqueue(instance, answer, now) {
            lane.changed.notify_one();
        }
        if !own.is_served {
            own.is_served = true;
            tokio::spawn(self.clone().serve(lane.clone()));
        }
        Ok(answered)
    }

    /// Calls for one batch after the other, until none is left.
    async fn serve(self: Arc<Self>, lane: Arc<Requests>) {
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

    async fn call(self: Arc<Self>, lane: Arc<Requests>, batch: Batch) {
        let query = Query::Ids(batch.waiters.keys().cloned().collect());
        // In a task of its own: if it panics, the others are still answered.
        let asked = tokio::spawn({
            let (shared, lane) = (self.clone(), lane.clone());
            async move { shared.ask(&lane, &query).await }
        });
        let found = asked.await;
        let found = found.unwrap_or(Err(OutageKind::Unreachable("the call ended early")));
        lane.settle(found.as_ref().err());
        let mut state = lane.lock();
        let own = &mut state.own;
        own.in_flight = own.in_flight.saturating_sub(1);
        match found {
            Ok(found) => own.deliver(batch, found),
            Err(outage) => {
                own.refuse(batch, &outage);
                // They would only wait for the same.
                for batch in std::mem::take(&mut own.queue) {
                    own.refuse(batch, &outage);
                }
            }
        }
        drop(state);
        lane.changed.notify_one();
    }

    /// All pages of an answer. The first one's token is taken.
    async fn ask(&self, lane: &Requests, query: &Query) -> Result<Vec<InstanceFacts>, OutageKind> {
        let (credentials, region) = (&lane.credentials, &*lane.region);
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            if next.is_some() {
                lane.token().await;
            }
            let next_token = next.as_deref();
            let page = self.ec2.describe(credentials, region, query, next_token);
            let page = lane.call(page).await?;
            found.extend(page.instances);
            next = page.next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(found);
            }
            if found.len() > MAX_FOUND {
                break;
            }
        }
        Err(OutageKind::TooMuch)
    }
}

#[cfg(test)]
mod tests;
