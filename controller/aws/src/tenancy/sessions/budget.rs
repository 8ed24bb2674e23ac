//! The rates of STS calls: one for the process, and one for each namespace.
//!
//! # Guarantees
//!
//! - The assignment of tokens rotates through the namespaces, and then through the Clusters of a namespace. Therefore
//!   the sessions of one Cluster delay other Clusters by at most one call.

use std::time::Duration;

use kubelet_attestation::ensure;
use node_attestation_core::rate_limit::Rate;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{Lent, Loan, Lock, Shared, Swept};
use node_attestation_runtime::turns::FairRate;
use tokio::time::Instant;

/// The rate of all calls. STS allows a higher rate for an account, but other clients share the account's quota.
const ALL: Rate = Rate {
    burst: 50,
    every: Duration::from_millis(100),
};

/// The rate of one namespace's calls, which is more than its clusters need, and 10 % of the total rate.
const NAMESPACE: Rate = Rate {
    burst: 10,
    every: Duration::from_secs(1),
};

/// The token buckets.
#[derive(Debug)]
pub(super) struct Budget {
    all: FairRate,
    namespaces: Shared<Swept<String, Lent<FairRate>>>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            all: FairRate::new(ALL),
            namespaces: Shared::new(Lock::StsRates, Swept::default()),
        }
    }

    /// Waits for this Cluster's turn to call STS. Does not wait for the namespace's share of the rate, because other
    /// tenants can share the call.
    pub(super) async fn of_all(&self, cluster: &ObjectKey) {
        self.all.take(cluster).await;
    }

    /// Waits until this Cluster can start another call in its namespace's share, or until it no longer needs a call.
    pub(super) async fn take(&self, cluster: &ObjectKey, is_needed: impl Fn() -> bool) {
        let rate = self.of_namespace(cluster);
        let check = |_| {
            ensure!(is_needed(), ());
            Ok(())
        };
        // If the call is no longer needed, `take_if` does not take a token.
        let _ = rate.take_if(cluster, check).await;
    }

    /// Whether this Cluster can start another call in its namespace's share now. If so, takes the token.
    pub(super) fn try_take(&self, cluster: &ObjectKey) -> bool {
        self.of_namespace(cluster).try_take(cluster)
    }

    fn of_namespace(&self, cluster: &ObjectKey) -> Loan<FairRate> {
        // Remove the namespaces whose bucket is full.
        let now = Instant::now();
        let is_full = |_: &_, rate: &mut Lent<FairRate>| !rate.is_lent() && rate.is_full(now);
        let new = || Lent::new(FairRate::new(NAMESPACE));
        self.namespaces.write(|namespaces| {
            let namespace = cluster.namespace.clone();
            namespaces
                .get_or_insert_with(namespace, is_full, new)
                .lend()
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{FutureExt as _, join_all, select};
    use node_attestation_runtime::shared::testing::most_visited;
    use tokio::time::sleep;

    use super::*;

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(namespace, name)
    }

    async fn token(budget: &Budget, cluster: &ObjectKey) {
        budget.take(cluster, || true).await;
        budget.of_all(cluster).await;
    }

    async fn seconds(clusters: impl IntoIterator<Item = ObjectKey>) -> u64 {
        let budget = Budget::new();
        let start = Instant::now();
        join_all(clusters.into_iter().map(|cluster| {
            let budget = &budget;
            async move { token(budget, &cluster).await }
        }))
        .await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_with_many_tenants_is_spread_over_time() {
        let each = || (0..201).map(|n| key(&format!("tenant-{n}"), "one"));
        assert_eq!(seconds(each().take(50)).await, 0);
        assert_eq!(seconds(each()).await, 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_does_not_use_the_share_of_another_tenant() {
        assert_eq!(seconds((0..30).map(|_| key("one", "a"))).await, 20);

        let budget = Budget::new();
        let flood = key("one", "a");
        let flood = join_all((0..30).map(|_| token(&budget, &flood)));
        let other = async {
            let start = Instant::now();
            token(&budget, &key("two", "a")).await;
            start.elapsed()
        };
        let (_, waited) = tokio::join!(flood, other);
        assert_eq!(waited, Duration::ZERO);
    }

    /// The time for which `late` waits for a call, after `flood` has started to wait for `calls` calls.
    async fn wait_behind(flood: &ObjectKey, late: &ObjectKey, of_all: bool) -> Duration {
        let budget = Budget::new();
        let take = async |cluster: &ObjectKey| {
            if of_all {
                budget.of_all(cluster).await;
            } else {
                budget.take(cluster, || true).await;
            }
        };
        let burst = if of_all { ALL.burst } else { NAMESPACE.burst };
        for _ in 0..burst {
            take(flood).await;
        }
        let calls = Box::pin(join_all((0..40).map(|_| take(flood))));
        let late = Box::pin(async {
            sleep(Duration::from_millis(1)).await;
            let start = Instant::now();
            take(late).await;
            start.elapsed()
        });
        match select(late, calls).await {
            futures::future::Either::Left((waited, _)) => waited,
            futures::future::Either::Right(..) => Duration::MAX,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_one_namespace_delay_other_namespaces_by_one_call() {
        let waited = wait_behind(&key("evil", "a"), &key("tenant-a", "a"), true).await;
        assert!(waited <= 2 * ALL.every, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_one_cluster_delay_others_in_its_namespace_by_one_call() {
        for (of_all, rate) in [(true, ALL), (false, NAMESPACE)] {
            let waited = wait_behind(&key("team", "evil"), &key("team", "a"), of_all).await;
            assert!(waited <= 2 * rate.every, "{of_all}: {waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_canceled_call_does_not_take_a_token() {
        let (budget, cluster) = (Budget::new(), key("tenant-a", "a"));
        for _ in 0..100 {
            budget.take(&cluster, || false).await;
        }
        let start = Instant::now();
        for _ in 0..NAMESPACE.burst {
            budget.take(&cluster, || true).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_with_a_full_bucket_are_dropped() {
        let budget = Budget::new();
        for number in 0..1000 {
            budget.take(&key(&number.to_string(), "a"), || true).await;
            sleep(NAMESPACE.every).await;
        }
        let known = budget.namespaces.read(Swept::len);
        assert!(known < 20, "{known}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_of_another_namespace_does_not_refill_tokens() {
        let budget = Budget::new();
        for _ in 0..NAMESPACE.burst {
            token(&budget, &key("tenant-a", "one")).await;
        }
        token(&budget, &key("tenant-b", "one")).await;
        let start = Instant::now();

        token(&budget, &key("tenant-a", "one")).await;

        assert_eq!(start.elapsed(), NAMESPACE.every);
    }

    #[tokio::test(start_paused = true)]
    async fn an_sts_call_visits_few_of_many_waiting_namespaces() {
        let budget = Budget::new();
        for number in 0..1000 {
            budget.take(&key(&number.to_string(), "a"), || true).await;
        }

        let visited = most_visited(|| {
            let cluster = key("new", "a");
            let taken = budget.take(&cluster, || true);
            assert!(taken.now_or_never().is_some());
        });

        assert!(visited[&Lock::StsRates] < 10, "{visited:?}");
    }
}
