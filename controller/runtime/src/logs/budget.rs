//! The limit of log lines about refused requests per namespace. A tenant's API server can invent any number of
//! requests.

use std::time::Duration;

use node_attestation_core::rate_limit::Rate;
use tokio::time::Instant;

use crate::object_key::ObjectKey;
use crate::shared::{Lock, Shared, Swept};

/// The rate of lines of one namespace: enough for 1,000 machines that join together.
const OF_NAMESPACE: Rate = Rate {
    burst: 2000,
    every: Duration::from_millis(20),
};

/// The rate of lines of one cluster: half of the namespace's rate.
const OF_CLUSTER: Rate = Rate {
    burst: 1000,
    every: Duration::from_millis(40),
};

/// The time after which the number of dropped lines is forgotten, if its cluster has no further line.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The log lines that each namespace, and each cluster in it, can write.
#[derive(Debug)]
pub(crate) struct LineBudget(Shared<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    /// The times at which the budgets are full.
    namespaces: Swept<String, Instant>,
    clusters: Swept<ObjectKey, OfCluster>,
}

#[derive(Debug)]
struct OfCluster {
    full_at: Instant,
    left_out: u64,
}

impl OfCluster {
    fn is_forgotten(&self, now: Instant) -> bool {
        let until = if self.left_out == 0 {
            self.full_at
        } else {
            self.full_at + REMEMBERED
        };
        until <= now
    }
}

impl Default for LineBudget {
    fn default() -> Self {
        Self(Shared::new(Lock::LogBudgets, Buckets::default()))
    }
}

impl LineBudget {
    /// Takes a line of this cluster. Returns the number of lines that were dropped before it. Returns `None` if the
    /// budget is exhausted, and this line is dropped too.
    pub(crate) fn take(&self, cluster: &ObjectKey, now: Instant) -> Option<u64> {
        self.0.write(|buckets| buckets.take(cluster, now))
    }
}

impl Buckets {
    fn take(&mut self, cluster: &ObjectKey, now: Instant) -> Option<u64> {
        let of_namespace = self.namespaces.get_or_insert_with(
            cluster.namespace.clone(),
            |_, full_at| *full_at <= now,
            || now,
        );
        let of_cluster = self.clusters.get_or_insert_with(
            cluster.clone(),
            |_, one| one.is_forgotten(now),
            || OfCluster {
                full_at: now,
                left_out: 0,
            },
        );
        let (mut namespace, mut own) = (*of_namespace, of_cluster.full_at);
        let is_within = OF_CLUSTER.take(&mut own, now).is_ok()
            && OF_NAMESPACE.take(&mut namespace, now).is_ok();
        if !is_within {
            of_cluster.left_out += 1;
            return None;
        }
        (*of_namespace, of_cluster.full_at) = (namespace, own);
        Some(std::mem::take(&mut of_cluster.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::shared::testing::most_visited;

    fn cluster(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(namespace, name)
    }

    #[tokio::test(start_paused = true)]
    async fn the_lines_of_a_namespace_are_limited_and_take_none_of_another() {
        let (budget, now) = (LineBudget::default(), Instant::now());
        let lines = |namespace: &str, name: &str, now: Instant| {
            let cluster = cluster(namespace, name);
            let lines = (0..10_000).filter_map(|_| budget.take(&cluster, now));
            lines.count()
        };

        assert_eq!(lines("a", "1", now), 1000);
        assert_eq!(lines("a", "2", now), 1000);
        assert_eq!(lines("a", "3", now), 0);
        assert_eq!(lines("b", "1", now), 1000);
        let later = now + Duration::from_secs(1);
        assert_eq!(lines("a", "3", later), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_log_line_contains_the_number_of_dropped_lines() {
        let (budget, now) = (LineBudget::default(), Instant::now());
        let cluster = cluster("a", "1");
        for _ in 0..1007 {
            budget.take(&cluster, now);
        }

        let later = now + OF_CLUSTER.every;
        assert_eq!(budget.take(&cluster, later), Some(7));
        assert_eq!(budget.take(&cluster, later), None);
        assert_eq!(budget.take(&cluster, later + OF_CLUSTER.every), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn log_budgets_of_deleted_clusters_are_dropped_in_small_steps() {
        let (budget, now) = (LineBudget::default(), Instant::now());
        let flood = |from: usize, now: Instant| {
            for number in from..from + 1000 {
                // The namespace has no line left for most of them.
                for _ in 0..3 {
                    budget.take(&cluster("a", &number.to_string()), now);
                }
            }
        };
        flood(0, now);
        let kept = || budget.0.read(|buckets| buckets.clusters.len());
        assert_eq!(kept(), 1000);

        let later = now + Duration::from_hours(2);
        let visited = most_visited(|| flood(1000, later));

        assert_eq!(visited, BTreeMap::from([(Lock::LogBudgets, 4)]));
        assert_eq!(kept(), 1000, "those of before are forgotten");
    }
}
