//! The calls to one EC2 action, grouped by credentials and region.
//!
//! EC2 throttles each action separately, so each action has its own channel.

use std::any::Any;
use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{Lent, Loan, Lock, PAGE, Share, Shared, Shares, Swept};
use node_attestation_runtime::turns::{FairRate, FairTurns, Turn, TurnLimits};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::OutageKind;
use super::call_limits::CallLimits;
use super::circuit_breaker::CircuitBreaker;
use crate::credentials::{Credentials, CredentialsKey, CredentialsSource, Lease, Tenant};
use crate::proxy::caused_by;

/// The maximum number of lanes. A fleet uses fewer combinations of tenants and regions. At the limit, unused lanes are
/// dropped first.
const MAX_LANES: usize = 4096;

/// The maximum number of lanes for one namespace, which is more than the number of its Clusters. It is limited because
/// a tenant can specify any number of regions. At the limit, unused lanes of the namespace are dropped.
const MAX_OF_NAMESPACE: usize = MAX_LANES / 4;

/// The maximum number of remembered results, which is more than the number of instances that join or renew while a
/// result is remembered. At the limit, some results are dropped and requested again.
const MAX_REMEMBERED: usize = 10_000;

const ONE: TurnLimits = TurnLimits {
    all: 1,
    of_cluster: 1,
};

/// The calls to one action. `S` is the additional state of a lane for this action.
#[derive(Debug)]
pub(super) struct Channel<S> {
    source: Arc<dyn CredentialsSource>,
    pub(super) limits: CallLimits,
    lanes: Shared<Lanes<S>>,
}

#[derive(Debug)]
struct Lanes<S> {
    /// The lanes, keyed by credentials and region.
    all: Swept<(CredentialsKey, String), Kept<S>>,
    namespaces: Shares,
}

/// A lane of a channel.
#[derive(Debug)]
struct Kept<S> {
    lane: Lent<Lane<S>>,
    /// The EC2 client of the lane is kept as long as this value exists.
    _client: Arc<dyn Any + Send + Sync>,
    /// The memory share of the first namespace that used the lane.
    share: Share,
}

/// The calls with the same credentials in one region.
#[derive(Debug)]
pub(super) struct Lane<S> {
    source: Arc<dyn CredentialsSource>,
    /// The credentials, with the lease on the EC2 client.
    pub(super) credentials: Credentials,
    /// The lease on the credentials.
    lease: Lease,
    pub(super) region: String,
    limits: CallLimits,
    /// The rate. Clusters that share these credentials take tokens in turn.
    rate: FairRate,
    /// The turn to test whether EC2 works again.
    trial: FairTurns,
    state: Shared<ChannelState<S>>,
    /// Notifies that a batch is full, or that no further instance is expected.
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct ChannelState<S> {
    pub(super) breaker: CircuitBreaker,
    pub(super) own: S,
}

impl<S: Default> Channel<S> {
    /// The source of the credentials.
    pub(super) fn source(&self) -> &dyn CredentialsSource {
        &*self.source
    }

    pub(super) fn new(source: Arc<dyn CredentialsSource>, limits: CallLimits) -> Self {
        Self {
            source,
            limits,
            lanes: Shared::new(
                Lock::Ec2Queues,
                Lanes {
                    all: Swept::default(),
                    namespaces: Shares::default(),
                },
            ),
        }
    }

    /// Returns the lane for a tenant's instances in a region, and the lease on its credentials, if credentials are
    /// available in time. The caller holds the lease until it has the response.
    ///
    /// # Errors
    ///
    /// Returns an error if no credentials are available, or if the tenant's namespace uses too many lanes.
    pub(super) async fn lane(
        &self,
        tenant: &Tenant,
        region: &str,
    ) -> Result<(Loan<Lane<S>>, Lease), Unavailable> {
        let namespace = tenant.line().namespace;
        let found = caused_by(&namespace, self.source.credentials(tenant, region));
        let found = timeout(self.limits.credentials, found).await;
        let credentials = found.map_err(|_| {
            OutageKind::Credentials("no credentials were found in time".to_owned()).at(region)
        })??;
        let now = Instant::now();
        let key = (credentials.key, region.to_owned());
        let new = || self.new_lane(&credentials, region);
        let (lane, dead) = self
            .lanes
            .write(|lanes| lanes.get_or_insert_with(key, &namespace, now, new));
        // The lanes are dropped after the lock is released, because they can hold many remembered responses.
        drop(dead);
        let lane = lane.ok_or_else(|| OutageKind::TooManyRegions.at(region))?;
        Ok((lane, credentials.lease))
    }

    /// Creates a lane. Also returns the value that keeps the lane's EC2 client.
    fn new_lane(
        &self,
        credentials: &Credentials,
        region: &str,
    ) -> (Lane<S>, Arc<dyn Any + Send + Sync>) {
        let client: Arc<dyn Any + Send + Sync> = Arc::new(());
        let cached = credentials.cached();
        let state = ChannelState {
            breaker: CircuitBreaker::default(),
            own: S::default(),
        };
        let lane = Lane {
            source: self.source.clone(),
            lease: cached.lease.clone(),
            credentials: Credentials {
                lease: Lease::OfOthers(Arc::downgrade(&client)),
                ..cached
            },
            region: region.to_owned(),
            limits: self.limits,
            rate: FairRate::new(self.limits.rate),
            trial: FairTurns::new(ONE),
            state: Shared::new(Lock::Ec2Calls, state),
            changed: Notify::new(),
        };
        (lane, client)
    }
}

/// Lanes whose last reference must not be dropped under the lock of all lanes.
type DroppedLanes<S> = Vec<Lent<Lane<S>>>;

impl<S> Lanes<S> {
    /// Returns the lane with this key, or a new lane if the namespace has not reached its limit. Also returns the lanes
    /// that were dropped.
    fn get_or_insert_with(
        &mut self,
        key: (CredentialsKey, String),
        namespace: &str,
        now: Instant,
        new: impl FnOnce() -> (Lane<S>, Arc<dyn Any + Send + Sync>),
    ) -> (Option<Loan<Lane<S>>>, DroppedLanes<S>) {
        let known = self.all.get(&key).filter(|kept| !kept.is_over());
        if let Some(kept) = known {
            return (Some(kept.lane.lend()), Vec::new());
        }
        let share = self.namespaces.of(namespace);
        let mut dead = Vec::new();
        if share.count() > MAX_OF_NAMESPACE {
            let is_dead = |_: &_, kept: &mut Kept<S>| {
                kept.is_over() || kept.share.has_owner_of(&share) && kept.rests(now)
            };
            dead.extend(lanes_of(self.all.sweep(PAGE, is_dead)));
        }
        if share.count() > MAX_OF_NAMESPACE {
            return (None, dead);
        }
        let is_full = self.all.len() >= MAX_LANES;
        let (lane, client) = new();
        let lane = Lent::new(lane);
        let loan = lane.lend();
        let kept = Kept {
            lane,
            _client: client,
            share,
        };
        let is_dead = |_: &_, kept: &mut Kept<S>| kept.is_over() || is_full && kept.rests(now);
        dead.extend(lanes_of(self.all.insert(key, kept, is_dead)));
        (Some(loan), dead)
    }
}

/// The lanes, without their memory shares.
fn lanes_of<S>(kept: Vec<Kept<S>>) -> impl Iterator<Item = Lent<Lane<S>>> {
    kept.into_iter().map(|kept| kept.lane)
}

impl<S> Kept<S> {
    /// Whether the credentials have been dropped.
    fn is_over(&self) -> bool {
        self.lane.lease.is_over()
    }

    /// Whether the lane can be dropped without losing state. A lane is in use while a caller holds it.
    fn rests(&self, now: Instant) -> bool {
        !self.lane.is_lent() && self.lane.rests(now)
    }
}

impl<S> Lane<S> {
    /// Returns the result of `change`.
    pub(super) fn state<R>(&self, change: impl FnOnce(&mut ChannelState<S>) -> R) -> R {
        self.state.write(change)
    }

    /// Waits for this cluster's turn to call EC2.
    ///
    /// # Errors
    ///
    /// Returns an error if EC2 failed, and calls pause.
    pub(super) async fn token(&self, cluster: &ObjectKey) -> Result<(), OutageKind> {
        let has_paused = |now| self.state(|state| state.breaker.check(now));
        self.rate.take_if(cluster, has_paused).await
    }

    /// Whether an unused lane can be dropped without losing state.
    fn rests(&self, now: Instant) -> bool {
        self.rate.is_full(now) && self.state(|state| state.breaker.check(now).is_ok())
    }

    /// Waits for the turn to test whether EC2 works again after a failure. While a caller holds the turn, no other
    /// caller makes a call.
    pub(super) async fn alone_after_failure(&self, cluster: &ObjectKey) -> Option<Turn> {
        if !self.has_failed() {
            return None;
        }
        let alone = self.trial.line(cluster).turn().await;
        // The previous holder of the turn might have found that EC2 works again.
        self.has_failed().then_some(alone)
    }

    fn has_failed(&self) -> bool {
        self.state(|state| state.breaker.is_any())
    }

    /// Returns the response to a call, within its deadline. If AWS rejects the session and another session can exist,
    /// repeats the call once.
    pub(super) async fn call<T, F>(
        &self,
        cluster: &ObjectKey,
        call: impl Fn() -> F,
    ) -> Result<T, OutageKind>
    where
        F: Future<Output = Result<T, OutageKind>>,
    {
        let began = Instant::now();
        let namespace = cluster.namespace.as_str();
        let answer = self.call_once(caused_by(namespace, call())).await;
        let is_refused = answer.as_ref().is_err_and(OutageKind::is_of_session);
        if !is_refused || !self.source.forget_session(self.credentials.key, began) {
            return answer;
        }
        self.token(cluster).await?;
        self.call_once(caused_by(namespace, call())).await
    }

    async fn call_once<T>(
        &self,
        call: impl Future<Output = Result<T, OutageKind>>,
    ) -> Result<T, OutageKind> {
        let answer = timeout(self.limits.call, call).await;
        answer.unwrap_or(Err(OutageKind::TimedOut))
    }

    /// Records the outcome of a call.
    pub(super) fn settle(&self, outage: Option<&OutageKind>) {
        let now = Instant::now();
        self.state(|state| state.breaker.settle(outage, now, &self.limits));
    }
}

/// EC2's responses, with the time of each.
pub(super) type Remembered<K, V> = Swept<K, (Instant, V)>;

/// The remembered response, if it is younger than `age`.
pub(super) fn recall<K, Q, V>(remembered: &Remembered<K, V>, key: &Q, age: Duration) -> Option<V>
where
    K: Ord + Clone + Borrow<Q>,
    Q: Ord + ?Sized,
    V: Clone,
{
    let (since, response) = remembered.get(key)?;
    (since.elapsed() < age).then(|| response.clone())
}

/// Remembers a response for `age`, and removes some older responses.
pub(super) fn remember<K: Ord + Clone, V>(
    remembered: &mut Remembered<K, V>,
    key: K,
    response: V,
    age: Duration,
) {
    let is_full = remembered.len() >= MAX_REMEMBERED;
    let is_dead = |_: &K, (since, _): &mut (Instant, V)| is_full || since.elapsed() >= age;
    remembered.insert(key, (Instant::now(), response), is_dead);
}

#[cfg(test)]
mod tests;
