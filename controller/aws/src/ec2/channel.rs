//! The calls of one EC2 action, by credentials and region.
//!
//! EC2 throttles each action separately, so each action has its own channel.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{Lock, Shared, Swept};
use node_attestation_runtime::turns::{FairRate, FairTurns, Turn, TurnLimits};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::OutageKind;
use super::call_limits::CallLimits;
use super::circuit_breaker::CircuitBreaker;
use crate::credentials::{Credentials, CredentialsKey, CredentialsSource, Lease, Tenant};

/// The maximum number of lanes, which is more than the number of tenants times regions in use in a fleet. At the limit,
/// unused lanes are dropped first.
const MAX_LANES: usize = 4096;

/// The maximum number of remembered results: more instances than join or renew within the time that a result is
/// remembered. At the limit, a few are requested again.
const MAX_REMEMBERED: usize = 10_000;

const ONE: TurnLimits = TurnLimits {
    all: 1,
    of_cluster: 1,
};

/// The lanes, by credentials and region.
type Lanes<S> = Swept<(CredentialsKey, String), Arc<Lane<S>>>;

/// The calls of one action. `S` is the additional state of a lane for this action.
#[derive(Debug)]
pub(super) struct Channel<S> {
    source: Arc<dyn CredentialsSource>,
    pub(super) limits: CallLimits,
    lanes: Shared<Lanes<S>>,
}

/// The calls with the same credentials in one region.
#[derive(Debug)]
pub(super) struct Lane<S> {
    source: Arc<dyn CredentialsSource>,
    pub(super) credentials: Credentials,
    pub(super) region: String,
    limits: CallLimits,
    /// The clusters that share these credentials take tokens in turn.
    rate: FairRate,
    /// The cluster whose turn it is tests whether EC2 works again.
    trial: FairTurns,
    state: Shared<State<S>>,
    /// A batch is full, or no further instance is expected.
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct State<S> {
    pub(super) trouble: CircuitBreaker,
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
            lanes: Shared::new(Lock::Ec2Queues, Swept::default()),
        }
    }

    /// The lane for a tenant's instances in a region, if credentials are available in time, and their lease. The caller
    /// holds the lease until the answer.
    pub(super) async fn lane(
        &self,
        tenant: &Tenant,
        region: &str,
    ) -> Result<(Arc<Lane<S>>, Lease), Unavailable> {
        let found = self.source.credentials(tenant, region);
        let found = timeout(self.limits.credentials, found).await;
        let credentials = found.map_err(|_| {
            OutageKind::Credentials("none were found in time".to_owned()).at(region)
        })??;
        let now = Instant::now();
        let key = (credentials.key, region.to_owned());
        let cached = credentials.cached();
        let lease = credentials.lease;
        let is_over = |lane: &Lane<S>| lane.credentials.lease.is_over();
        let (lane, dead) = self.lanes.write(|lanes| {
            if let Some(lane) = lanes.get(&key).filter(|lane| !is_over(lane)) {
                return (lane.clone(), Vec::new());
            }
            let is_full = lanes.len() >= MAX_LANES;
            // A lane that a caller holds is in use.
            let rests = |lane: &Arc<Lane<S>>| Arc::strong_count(lane) == 1 && lane.rests(now);
            let lane = Arc::new(Lane {
                source: self.source.clone(),
                credentials: cached,
                region: region.to_owned(),
                limits: self.limits,
                rate: FairRate::new(self.limits.rate),
                trial: FairTurns::new(ONE),
                state: Shared::new(
                    Lock::Ec2Calls,
                    State {
                        trouble: CircuitBreaker::default(),
                        own: S::default(),
                    },
                ),
                changed: Notify::new(),
            });
            let is_dead = |_: &_, lane: &mut Arc<_>| is_over(lane) || is_full && rests(lane);
            let dead = lanes.insert(key, lane.clone(), is_dead);
            (lane, dead)
        });
        // They can hold many remembered answers, so they are dropped outside the lock.
        drop(dead);
        Ok((lane, lease))
    }
}

impl<S> Lane<S> {
    /// The result of `change`.
    pub(super) fn state<R>(&self, change: impl FnOnce(&mut State<S>) -> R) -> R {
        self.state.write(change)
    }

    /// Waits for this cluster's turn to call EC2.
    ///
    /// # Errors
    ///
    /// EC2 failed, and calls pause.
    pub(super) async fn token(&self, cluster: &ObjectKey) -> Result<(), OutageKind> {
        let has_paused = |now| self.state(|state| state.trouble.check(now));
        self.rate.take_if(cluster, has_paused).await
    }

    /// Whether an unused lane can be dropped without loss of state.
    fn rests(&self, now: Instant) -> bool {
        self.rate.is_full(now) && self.state(|state| state.trouble.check(now).is_ok())
    }

    /// Waits for the turn to test whether EC2 works again after a failure. Only the holder of the guard makes a call at
    /// that time.
    pub(super) async fn alone_after_failure(&self, cluster: &ObjectKey) -> Option<Turn> {
        if !self.has_failed() {
            return None;
        }
        let alone = self.trial.line(cluster).turn().await;
        // The previous holder can have found that EC2 works.
        self.has_failed().then_some(alone)
    }

    fn has_failed(&self) -> bool {
        self.state(|state| state.trouble.is_any())
    }

    /// The answer to a call, within its deadline. If AWS refuses the session and another session can exist, the call is
    /// repeated once.
    pub(super) async fn call<T, F>(
        &self,
        cluster: &ObjectKey,
        call: impl Fn() -> F,
    ) -> Result<T, OutageKind>
    where
        F: Future<Output = Result<T, OutageKind>>,
    {
        let began = Instant::now();
        let answer = self.call_once(call()).await;
        let is_refused = answer.as_ref().is_err_and(OutageKind::is_of_session);
        if !is_refused || !self.source.forget_session(self.credentials.key, began) {
            return answer;
        }
        self.token(cluster).await?;
        self.call_once(call()).await
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
        self.state(|state| state.trouble.settle(outage, now, &self.limits));
    }
}

/// Answers of EC2, and their times.
pub(super) type Remembered<K, V> = Swept<K, (Instant, V)>;

/// The remembered answer, if it is younger than `age`.
pub(super) fn recall<K, Q, V>(remembered: &Remembered<K, V>, key: &Q, age: Duration) -> Option<V>
where
    K: Ord + Clone + Borrow<Q>,
    Q: Ord + ?Sized,
    V: Clone,
{
    let (since, told) = remembered.get(key)?;
    (since.elapsed() < age).then(|| told.clone())
}

pub(super) fn remember<K: Ord + Clone, V>(remembered: &mut Remembered<K, V>, key: K, told: V) {
    let is_full = remembered.len() >= MAX_REMEMBERED;
    remembered.insert(key, (Instant::now(), told), |_, _| is_full);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures::future::FutureExt as _;
    use node_attestation_runtime::shared::testing::most_visited;
    use parking_lot::Mutex;

    use super::*;
    use crate::ec2::{Ec2, Ec2Settings};
    use crate::testing::{REGION, credentials};

    /// Credentials that are leased, by the name of a tenant.
    #[derive(Debug, Default)]
    struct Lessor(Mutex<HashMap<u8, Arc<()>>>);

    #[async_trait::async_trait]
    impl CredentialsSource for Lessor {
        async fn credentials(&self, tenant: &Tenant, _: &str) -> Result<Credentials, Unavailable> {
            let Tenant::Cluster(tenant) = tenant else {
                return Ok(credentials(0, "OWN"));
            };
            let number = tenant.cluster.name.parse().unwrap();
            let lease = self.0.lock().entry(number).or_default().clone();
            Ok(Credentials {
                lease: Lease::Held(lease),
                ..credentials(number, "LEASED")
            })
        }
    }

    fn tenant(number: &str) -> &'static Tenant {
        crate::testing::tenant(number)
    }

    #[tokio::test(start_paused = true)]
    async fn ec2_clients_are_dropped_together_with_their_credentials() {
        let lessor = Arc::new(Lessor::default());
        let limits = crate::ec2::Limits::default().calls;
        let channel: Channel<()> = Channel::new(lessor.clone(), limits);
        let ec2 = Ec2::new(Ec2Settings::default());
        let use_lane = async |tenant| {
            let (lane, _lease) = channel.lane(tenant, REGION).await.unwrap();
            ec2.client(&lane.credentials, REGION);
            lane
        };
        let kept = |lane: &Arc<Lane<()>>| {
            let is_it = |other: &Arc<Lane<()>>| Arc::ptr_eq(other, lane);
            channel
                .lanes
                .read(|lanes| lanes.entries().values().any(is_it))
        };
        let own = use_lane(&Tenant::Controller).await;
        let first = use_lane(tenant("1")).await;
        assert!(Arc::ptr_eq(&use_lane(tenant("1")).await, &first));
        assert_eq!(ec2.kept(), 2);

        lessor.0.lock().remove(&1);
        let second = use_lane(tenant("2")).await;
        assert!(kept(&own) && kept(&second) && !kept(&first));
        assert_eq!(ec2.kept(), 2);

        // The same credentials, after nobody had them.
        lessor.0.lock().remove(&2);
        let again = use_lane(tenant("2")).await;
        assert!(kept(&again) && !kept(&second));
        assert_eq!(ec2.kept(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_call_queue_is_dropped_above_the_limit() {
        let limits = crate::ec2::Limits::default().calls;
        let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
        let lane = async |number: usize| {
            let region = format!("{number:05}");
            let lane = channel.lane(&Tenant::Controller, &region).await;
            lane.unwrap().0
        };
        let held = lane(0).await;
        lane(1).await.settle(Some(&OutageKind::TimedOut));
        let cluster = ObjectKey::new("tenant-a", "1");
        lane(2).await.token(&cluster).await.unwrap();
        drop(lane(3).await);
        let kept = |number: usize| {
            let region = format!("{number:05}");
            channel
                .lanes
                .read(|lanes| lanes.entries().keys().any(|(_, of)| *of == region))
        };
        let mut others = Vec::new();
        for number in 4..MAX_LANES {
            others.push(lane(number).await);
        }
        assert!(kept(3));

        // Enough to look at each lane while there are too many.
        for number in MAX_LANES..MAX_LANES + MAX_LANES / 2 {
            others.push(lane(number).await);
        }

        assert_eq!([0, 1, 2, 3].map(kept), [true, true, true, false]);
        assert!(Arc::ptr_eq(&lane(0).await, &held));
    }

    #[tokio::test]
    async fn remembered_results_are_dropped_only_above_the_limit() {
        let mut remembered = Remembered::<usize, ()>::default();
        for number in 0..MAX_REMEMBERED {
            remember(&mut remembered, number, ());
        }
        assert_eq!(remembered.len(), MAX_REMEMBERED);

        remember(&mut remembered, MAX_REMEMBERED, ());

        assert!(remembered.len() < MAX_REMEMBERED);
        let age = Duration::from_mins(1);
        assert_eq!(recall(&remembered, &MAX_REMEMBERED, age), Some(()));
    }

    #[tokio::test]
    async fn retries_after_a_failure_rotate_by_namespace() {
        let limits = crate::ec2::Limits::default().calls;
        let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
        let (lane, _lease) = channel.lane(&Tenant::Controller, REGION).await.unwrap();
        lane.settle(Some(&OutageKind::TimedOut));
        let cluster = |namespace: &str, name: &str| ObjectKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let first = lane.alone_after_failure(&cluster("tenant-a", "1")).await;
        assert!(first.is_some());
        let order: Arc<Mutex<Vec<&str>>> = Arc::default();
        let mut waiting = tokio::task::JoinSet::new();
        for (namespace, name) in [("tenant-a", "2"), ("tenant-a", "3"), ("tenant-b", "1")] {
            let (lane, order) = (lane.clone(), order.clone());
            let cluster = cluster(namespace, name);
            waiting.spawn(async move {
                let turn = lane.alone_after_failure(&cluster).await;
                order.lock().push(namespace);
                drop(turn);
            });
            tokio::task::yield_now().await;
        }

        drop(first);
        waiting.join_all().await;

        assert_eq!(*order.lock(), ["tenant-b", "tenant-a", "tenant-a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn creation_of_a_call_queue_and_its_client_visits_few_others() {
        let limits = crate::ec2::Limits::default().calls;
        let channel: Channel<()> = Channel::new(Arc::new(Lessor::default()), limits);
        let ec2 = Ec2::new(Ec2Settings::default());
        let lane = |number: usize| {
            let region = format!("{number:05}");
            let lane = channel.lane(&Tenant::Controller, &region).now_or_never();
            let (lane, _lease) = lane.unwrap().unwrap();
            ec2.client(&lane.credentials, &region);
            lane
        };
        let others: Vec<_> = (0..100).map(lane).collect();

        let visited = most_visited(|| lane(others.len()).settle(Some(&OutageKind::TimedOut)));

        for lock in [Lock::Ec2Queues, Lock::Ec2Clients, Lock::Ec2Calls] {
            assert!(visited[&lock] < 10, "{visited:?}");
        }
    }
}
