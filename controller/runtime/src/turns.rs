//! Turns and rates that the Clusters in all namespaces share: calls, lookups, requests, Events.

use std::convert::Infallible;
use std::sync::LazyLock;

use node_attestation_core::rate_limit::Rate;
use node_attestation_core::signer::SignatureTurns;
use tokio::time::{Instant, sleep_until};

use crate::object_key::ObjectKey;
use crate::shared::{Lock, Shared};

pub use node_attestation_turns::{FairTurns, Line, Owner, Turn, TurnLimits};

impl Owner for ObjectKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// The limits on concurrent calculations: signatures with CA keys, and checks of signatures and PCR values. A
/// calculation needs up to 3 ms of processor time, so other tasks wait only briefly.
pub const CALCULATIONS: TurnLimits = TurnLimits {
    all: 2,
    of_cluster: 1,
};

/// The turns for the calculations of all Clusters.
static PROCESS: LazyLock<FairTurns> = LazyLock::new(|| FairTurns::new(CALCULATIONS));

/// The queue of this Cluster for calculations.
pub fn calculations(cluster: &ObjectKey) -> Line {
    PROCESS.line(cluster)
}

/// The turns of one Cluster for signatures with its CA key.
#[derive(Debug)]
pub(crate) struct SigningTurns(pub(crate) Line);

#[async_trait::async_trait]
impl SignatureTurns for SigningTurns {
    async fn turn(&self) -> Box<dyn Send> {
        Box::new(self.0.turn().await)
    }
}

/// A rate that the Clusters in all namespaces share. The Clusters take tokens in turn.
#[derive(Debug)]
pub struct FairRate {
    turns: FairTurns,
    rate: Rate,
    /// The time at which the token bucket will be full.
    full_at: Shared<Instant>,
}

impl FairRate {
    /// Creates a full token bucket.
    pub fn new(rate: Rate) -> Self {
        let limits = TurnLimits {
            all: 1,
            of_cluster: 1,
        };
        Self {
            turns: FairTurns::new(limits),
            rate,
            full_at: Shared::new(Lock::Rate, Instant::now()),
        }
    }

    /// Waits for a token, when this Cluster's turn comes.
    pub async fn take(&self, cluster: &ObjectKey) {
        let Ok(()) = self.take_if(cluster, |_| Ok::<_, Infallible>(())).await;
    }

    /// Waits for a token, when this Cluster's turn comes. Calls `check` each time before it checks the bucket.
    ///
    /// # Errors
    ///
    /// Returns the error from `check`. No token is taken.
    pub async fn take_if<E>(
        &self,
        cluster: &ObjectKey,
        check: impl Fn(Instant) -> Result<(), E>,
    ) -> Result<(), E> {
        let _turn = self.turns.line(cluster).turn().await;
        loop {
            let now = Instant::now();
            check(now)?;
            let taken = self.full_at.write(|full_at| self.rate.take(full_at, now));
            let Err(ready) = taken else {
                return Ok(());
            };
            sleep_until(ready).await;
        }
    }

    /// Takes a token if one is available now and no other caller waits. Returns whether a token was taken.
    pub fn try_take(&self, cluster: &ObjectKey) -> bool {
        let turn = self.turns.line(cluster).try_turn();
        let take = |full_at: &mut Instant| self.rate.take(full_at, Instant::now());
        turn.is_some() && self.full_at.write(take).is_ok()
    }

    /// Whether the bucket is full.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at.read(|full_at| *full_at <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::future::FutureExt as _;
    use parking_lot::Mutex;

    use super::*;
    use crate::shared::testing::most_visited;

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_shared_by_namespace_and_then_by_cluster() {
        let rate = Rate {
            burst: 1,
            every: Duration::from_secs(1),
        };
        let shared = Arc::new(FairRate::new(rate));
        let order: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut callers = Vec::new();
        let each = (0..40).map(|number| ObjectKey::new("a", number.to_string()));
        for cluster in each.chain([ObjectKey::new("b", "1")]) {
            let (shared, order) = (shared.clone(), order.clone());
            callers.push(tokio::spawn(async move {
                shared.take(&cluster).await;
                order.lock().push(cluster.to_string());
            }));
        }
        futures::future::join_all(callers).await;

        let order = order.lock();
        let at = order.iter().position(|cluster| cluster == "b/1").unwrap();
        assert_eq!(order.len(), 41);
        assert_eq!(
            at, 2,
            "after the first, and the one that waits for its token"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_another_caller_waits_for_is_not_taken_before() {
        let rate = Rate {
            burst: 1,
            every: Duration::from_secs(1),
        };
        let (shared, cluster) = (FairRate::new(rate), ObjectKey::new("a", "1"));
        assert!(shared.try_take(&cluster));
        assert!(!shared.try_take(&cluster), "it has no token");
        let mut waiting = Box::pin(shared.take(&cluster));
        assert!((&mut waiting).now_or_never().is_none());

        tokio::time::advance(rate.every).await;

        assert!(!shared.try_take(&ObjectKey::new("b", "1")));
        waiting.await;
        tokio::time::advance(rate.every).await;
        assert!(shared.try_take(&cluster));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limited_call_visits_few_of_many_waiting_clusters() {
        let rate = Rate {
            burst: 2,
            every: Duration::from_secs(1),
        };
        let shared = FairRate::new(rate);
        let namespaces = ["a", "b"].into_iter();
        let keys = namespaces
            .flat_map(|of| (0..1000).map(move |number| ObjectKey::new(of, number.to_string())));
        let waiting = keys.map(|key| {
            let line = shared.turns.line(&key);
            let mut turn = Box::pin(async move { line.turn().await });
            ((&mut turn).now_or_never(), turn)
        });
        let _waiting: Vec<_> = waiting.collect();
        let shared_alone = FairRate::new(rate);

        let visited = most_visited(|| {
            let key = ObjectKey::new("c", "1");
            assert!(shared_alone.take(&key).now_or_never().is_some());
            assert!(shared.take(&key).now_or_never().is_none());
        });

        assert_eq!(visited[&Lock::Rate], 0);
        assert!(visited[&Lock::Turns] <= 2, "{visited:?}");
    }
}
