//! Describes instances in batches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, Shared};
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::metrics::Metrics;
use node_attestation_runtime::shared::{Loan, Shares, visited};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::call_limits::CallLimits;
use super::channel::{Channel, Lane, Remembered, recall, remember};
use super::{Describe, Ec2, Ec2Settings, InstanceFacts, MAX_IDS, OutageKind, Query};
use crate::credentials::{CredentialsSource, Lease, Tenant};

/// Limits on calls and on waiting requests. The controller uses the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The time for which a batch waits for another request. The window restarts with each request, because machines
    /// that start together do not send their requests at exactly the same time.
    pub window: Duration,
    /// The maximum time for which a batch's first request waits while other requests arrive or are expected.
    pub gathering: Duration,
    /// The maximum number of waiting requests from one namespace with the same credentials in one region.
    pub waiting: usize,
    /// The limits on the calls that requests share.
    pub calls: CallLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(100),
            gathering: Duration::from_secs(2),
            waiting: 4000,
            // EC2 allows more calls (a burst of 100, then 20 per second, with filters and pages), but other clients
            // share the account's quota. Only running instances are remembered.
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

/// The maximum number of pages that are read for one call, because EC2 can send incomplete or empty pages.
const MAX_PAGES: usize = 100;

/// The maximum number of instances that are read for one call. A cluster has fewer instances.
const MAX_FOUND: usize = 20_000;

/// Describes instances, and combines many requests into one call.
///
/// # Guarantees
///
/// - Requests share a call and its result only if they use the same credentials and region.
/// - If the calls for a region or a tenant fail, others are not delayed.
/// - Calls with shared credentials take turns: first by namespace, then by Cluster. A call for several namespaces does
///   not wait for expected requests.
/// - A canceled request does not affect the requests that share its call.
/// - An unknown instance, or an instance that is not running, is not remembered. Therefore a denial depends on
///   remembered data only for properties of a running instance that are a few seconds old.
#[derive(Debug, Clone)]
pub struct Instances {
    client: Arc<BatchedEc2>,
}

#[derive(Debug)]
struct BatchedEc2 {
    ec2: Arc<dyn Describe>,
    limits: Limits,
    channel: Channel<Batches>,
}

/// The requests with the same credentials in one region.
#[derive(Debug, Default)]
struct Batches {
    /// The batches that wait for their call, keyed by batch number.
    gathering: BTreeMap<u64, Batch>,
    last: u64,
    /// The number of waiting requests from each namespace.
    waiting: Shares,
    /// The number of open [`Reservation`]s from each namespace.
    expected: HashMap<String, usize>,
    remembered: Remembered<String, InstanceFacts>,
}

/// The instances that one call describes.
#[derive(Debug)]
struct Batch {
    /// The Cluster whose share of the call rate includes the call.
    owner: ObjectKey,
    opened: Instant,
    /// The time at which the last instance was added.
    latest: Instant,
    /// The time of the first request from another namespace, which waits only for the window. The requests of the
    /// two namespaces must not delay each other.
    shared: Option<Instant>,
    ids: BTreeSet<String>,
    found: Shared<BoxFuture<'static, Found>>,
}

type Found = Result<Arc<HashMap<String, InstanceFacts>>, OutageKind>;

/// Announces a request that follows within a short time. Calls wait for this request until the reservation is dropped,
/// or for a limited time.
#[derive(Debug)]
pub(crate) struct Reservation {
    client: Arc<BatchedEc2>,
    lane: Loan<Lane<Batches>>,
    /// The Cluster that sends the request.
    cluster: ObjectKey,
    /// The lease on the credentials, held until EC2 responds.
    lease: Lease,
}

impl Instances {
    /// Describes instances with the credentials from `source`.
    pub fn new(source: Arc<dyn CredentialsSource>, settings: Ec2Settings) -> Self {
        Self::with(source, Arc::new(Ec2::new(settings)), Limits::default())
    }

    /// Does the same as [`new`](Self::new), and also counts the calls.
    pub fn measured(
        source: Arc<dyn CredentialsSource>,
        settings: Ec2Settings,
        metrics: &Metrics,
    ) -> Self {
        let ec2 = Ec2::new(settings).measured_by(metrics.clone());
        Self::with(source, Arc::new(ec2), Limits::default())
    }

    /// Describes instances with the credentials from `source`, with a replacement for EC2 and with different limits.
    pub fn with(
        source: Arc<dyn CredentialsSource>,
        ec2: Arc<dyn Describe>,
        limits: Limits,
    ) -> Self {
        Self {
            client: Arc::new(BatchedEc2 {
                ec2,
                limits,
                channel: Channel::new(source, limits.calls),
            }),
        }
    }

    /// The source of the credentials.
    pub(super) fn source(&self) -> &dyn CredentialsSource {
        self.client.channel.source()
    }

    /// EC2's description of an instance. `None` if EC2 does not list the instance.
    ///
    /// # Errors
    ///
    /// Returns an error if EC2 cannot be called, or if the credentials are missing or not authorized.
    pub async fn describe(
        &self,
        tenant: &Tenant,
        region: &str,
        instance: &str,
    ) -> Result<Option<InstanceFacts>, Unavailable> {
        self.expect(tenant, region).await?.describe(instance).await
    }

    /// Announces a request that follows after another lookup. Earlier requests wait for this request, and share its
    /// call.
    ///
    /// # Errors
    ///
    /// Returns an error if no credentials are available.
    pub(crate) async fn expect(
        &self,
        tenant: &Tenant,
        region: &str,
    ) -> Result<Reservation, Unavailable> {
        let (lane, lease) = self.client.channel.lane(tenant, region).await?;
        let cluster = tenant.line();
        lane.state(|state| state.own.expect(&cluster.namespace));
        Ok(Reservation {
            client: self.client.clone(),
            lane,
            cluster,
            lease,
        })
    }

    /// Returns all instances with these tags.
    ///
    /// # Errors
    ///
    /// The same errors as for [`describe`](Self::describe). A partial response is also an error.
    pub(crate) async fn tagged(
        &self,
        tenant: &Tenant,
        region: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<Vec<InstanceFacts>, Unavailable> {
        let (lane, _lease) = self.client.channel.lane(tenant, region).await?;
        let found = async {
            let cluster = tenant.line();
            lane.token(&cluster).await?;
            let query = Query::Tags(tags.clone());
            let found = self.client.ask(&lane, &cluster, &query).await;
            lane.settle(found.as_ref().err());
            found
        };
        found.await.map_err(|outage| outage.at(region))
    }
}

impl Reservation {
    /// The account whose instances EC2 describes, if it is known.
    pub(crate) fn account(&self) -> Option<&str> {
        self.lane.credentials.account.as_deref()
    }

    /// Returns EC2's description of the instance. `None` if EC2 does not list the instance.
    ///
    /// # Errors
    ///
    /// The same errors as for [`Instances::describe`].
    pub(crate) async fn describe(
        self,
        instance: &str,
    ) -> Result<Option<InstanceFacts>, Unavailable> {
        let lane = self.lane.clone();
        let answer = self.answer(instance).await;
        answer.map_err(|outage| outage.at(&lane.region))
    }

    async fn answer(self, instance: &str) -> Result<Option<InstanceFacts>, OutageKind> {
        let limits = self.client.limits;
        let deadline = Instant::now() + limits.calls.wait;
        let known = self
            .lane
            .state(|state| recall(&state.own.remembered, instance, limits.calls.remembered));
        if known.is_some() {
            return Ok(known);
        }
        let (found, _waiting) = self.lane.state(|state| {
            state.breaker.check(Instant::now())?;
            let waiting = state.own.waiting.of(&self.cluster.namespace);
            if waiting.count() > limits.waiting {
                return Err(OutageKind::Busy);
            }
            let call = |number| {
                let (client, lane) = (self.client.clone(), self.lane.clone());
                BatchedEc2::call(client, lane, self.cluster.clone(), number)
            };
            let (found, is_earlier) = state.own.enqueue(instance, &self.cluster, call);
            if is_earlier {
                self.lane.changed.notify_waiters();
            }
            Ok((found, waiting))
        })?;
        let _lease = self.lease.clone();
        drop(self);
        let found = timeout_at(deadline, found).await;
        let found = found.unwrap_or(Err(OutageKind::TimedOut))?;
        Ok(found.get(instance).cloned())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let is_last = self
            .lane
            .state(|state| state.own.expect_no_more(&self.cluster.namespace));
        if is_last {
            self.lane.changed.notify_waiters();
        }
    }
}

impl Batch {
    fn is_full(&self) -> bool {
        self.ids.len() >= MAX_IDS
    }
}

impl Batches {
    /// Announces a request from this namespace.
    fn expect(&mut self, namespace: &str) {
        *self.expected.entry(namespace.to_owned()).or_default() += 1;
    }

    /// Withdraws an announcement, and returns whether it was the last one from the namespace.
    fn expect_no_more(&mut self, namespace: &str) -> bool {
        let Some(expected) = self.expected.get_mut(namespace) else {
            return false;
        };
        *expected = expected.saturating_sub(1);
        let is_last = *expected == 0;
        if is_last {
            self.expected.remove(namespace);
        }
        is_last
    }

    /// Adds an instance for this Cluster to the first batch that the Cluster can join. Returns whether the batch's call
    /// is now due earlier. For a new batch, `call` makes the call, and gets the batch's number.
    ///
    /// A Cluster can always join its own batches. It can join another Cluster's batch if that batch is that Cluster's
    /// next batch. If that Cluster is in another namespace, the batch must also be that namespace's next batch.
    /// Therefore the Cluster never waits for more calls than with a separate batch.
    fn enqueue<F>(
        &mut self,
        instance: &str,
        cluster: &ObjectKey,
        call: impl FnOnce(u64) -> F,
    ) -> (Shared<BoxFuture<'static, Found>>, bool)
    where
        F: Future<Output = Found> + Send + 'static,
    {
        let now = Instant::now();
        let (mut namespaces, mut clusters) = (BTreeSet::new(), BTreeSet::new());
        let may_join = |batch: &&mut Batch| {
            let owner = &batch.owner;
            let is_next = namespaces.insert(owner.namespace.clone());
            let is_next_of_cluster = clusters.insert(owner.clone());
            let is_near = owner.namespace == cluster.namespace || is_next;
            (owner == cluster || is_next_of_cluster && is_near)
                && (batch.ids.contains(instance) || !batch.is_full())
        };
        if let Some(batch) = visited(self.gathering.values_mut()).find(may_join) {
            if batch.ids.insert(instance.to_owned()) {
                batch.latest = now;
            }
            let is_shared = batch.owner.namespace != cluster.namespace && batch.shared.is_none();
            if is_shared {
                batch.shared = Some(now);
            }
            return (batch.found.clone(), is_shared || batch.is_full());
        }
        self.last += 1;
        // The call runs in a separate task, so that it continues after the first requester stops, and a panic does not
        // affect other batches.
        let call = tokio::spawn(call(self.last)).map(|ended| {
            ended.unwrap_or(Err(OutageKind::Unreachable(
                "the call ended without a response",
            )))
        });
        let found = call.boxed().shared();
        let batch = Batch {
            owner: cluster.clone(),
            opened: now,
            latest: now,
            shared: None,
            ids: BTreeSet::from([instance.to_owned()]),
            found: found.clone(),
        };
        self.gathering.insert(self.last, batch);
        (found, false)
    }

    /// Returns the time at which the batch's call is due. `None` if the call is due now.
    fn end_of(&self, number: u64, limits: &Limits) -> Option<Instant> {
        let batch = self
            .gathering
            .get(&number)
            .filter(|batch| !batch.is_full())?;
        let full_time = batch.opened + limits.gathering;
        let is_expected = self.expected.contains_key(&batch.owner.namespace);
        let end = if is_expected {
            full_time
        } else {
            full_time.min(batch.latest + limits.window)
        };
        let of_others = batch.shared.map(|at| at + limits.window);
        Some(of_others.map_or(end, |of_others| end.min(of_others)))
    }
}

impl BatchedEc2 {
    /// Makes the call for a batch after the batch is complete, when its turn comes.
    async fn call(
        self: Arc<Self>,
        lane: Loan<Lane<Batches>>,
        cluster: ObjectKey,
        number: u64,
    ) -> Found {
        loop {
            let changed = lane.changed.notified();
            let end = lane.state(|state| state.own.end_of(number, &self.limits));
            let Some(end) = end.filter(|end| Instant::now() < *end) else {
                break;
            };
            tokio::select! {
                () = sleep_until(end) => {}
                () = changed => {}
            }
        }
        let _alone = lane.alone_after_failure(&cluster).await;
        let ready = lane.token(&cluster).await;
        let batch = lane.state(|state| state.own.gathering.remove(&number));
        ready?;
        let Some(Batch { ids, .. }) = batch else {
            return Ok(Arc::default());
        };
        let query = Query::Ids(ids.into_iter().collect());
        let found = self.ask(&lane, &cluster, &query).await;
        lane.settle(found.as_ref().err());
        let found = found?.into_iter().map(|facts| (facts.id.clone(), facts));
        let found: HashMap<_, _> = found.collect();
        let age = self.limits.calls.remembered;
        for (id, facts) in found.iter().filter(|(_, facts)| facts.is_running()) {
            let (id, facts) = (id.clone(), facts.clone());
            lane.state(|state| remember(&mut state.own.remembered, id, facts, age));
        }
        Ok(Arc::new(found))
    }

    /// Reads all pages of a response. The caller has already taken the token for the first page. If another call
    /// fails in the meantime, reading stops before the next page.
    async fn ask(
        &self,
        lane: &Lane<Batches>,
        cluster: &ObjectKey,
        query: &Query,
    ) -> Result<Vec<InstanceFacts>, OutageKind> {
        let (credentials, region) = (&lane.credentials, &*lane.region);
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            if next.is_some() {
                lane.token(cluster).await?;
            }
            let next_token = next.as_deref();
            let page = || self.ec2.describe(credentials, region, query, next_token);
            let page = lane.call(cluster, page).await?;
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
