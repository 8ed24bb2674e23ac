//! The limit on log lines for each namespace. A tenant can repeat almost every event, and can have any number of
//! Clusters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use node_attestation_core::rate_limit::Rate;

use crate::object_key::ObjectKey;
use crate::shared::{Lock, Shared, Swept};

/// The rate of lines of one kind in one namespace: enough for 1,000 machines that join together.
const OF_NAMESPACE: Rate = Rate {
    burst: 2000,
    every: Duration::from_millis(20),
};

/// The rate of lines about certificates: enough for all nodes of the largest cluster that Kubernetes supports to renew
/// together after an outage.
const GRANTS_OF_NAMESPACE: Rate = Rate {
    burst: 10_000,
    ..OF_NAMESPACE
};

/// The time for which the number of dropped lines is kept if the cluster does not log another line.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The kind of log line. Each kind has a separate budget, because any holder of a bootstrap token can send requests,
/// and lines about requests must not displace other lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LineKind {
    /// A request that does not get a certificate or an answer.
    Refusal,
    /// A request with valid evidence, or a request that gets a certificate.
    Grant,
    /// Any other line.
    Other,
}

impl LineKind {
    /// The rates for a namespace and for a cluster. The cluster's rate is half of the namespace's rate.
    fn rates(self) -> (Rate, Rate) {
        let of_namespace = match self {
            Self::Grant => GRANTS_OF_NAMESPACE,
            Self::Refusal | Self::Other => OF_NAMESPACE,
        };
        let of_cluster = Rate {
            burst: of_namespace.burst / 2,
            every: of_namespace.every * 2,
        };
        (of_namespace, of_cluster)
    }
}

/// The log lines that each namespace, and each cluster in it, can write.
///
/// A namespace's lines are unlimited while no other namespace has a served cluster.
#[derive(Debug)]
pub(crate) struct LineBudget {
    buckets: Shared<Buckets>,
    /// The number of served clusters in each namespace.
    served: Shared<BTreeMap<String, usize>>,
}

/// A cluster that counts as served until this value is dropped.
#[derive(Debug)]
pub(crate) struct Served {
    budget: Arc<LineBudget>,
    namespace: String,
}

#[derive(Debug, Default)]
struct Buckets {
    /// The times at which the budgets will be full again.
    namespaces: Swept<(LineKind, String), Instant>,
    clusters: Swept<(LineKind, ObjectKey), OfCluster>,
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
        Self {
            buckets: Shared::new(Lock::LogBudgets, Buckets::default()),
            served: Shared::new(Lock::ServedNamespaces, BTreeMap::new()),
        }
    }
}

impl LineBudget {
    /// Counts a served cluster in this namespace.
    pub(crate) fn serve(self: &Arc<Self>, namespace: &str) -> Served {
        self.served.write(|served| {
            *served.entry(namespace.to_owned()).or_default() += 1;
        });
        Served {
            budget: self.clone(),
            namespace: namespace.to_owned(),
        }
    }

    fn is_alone(&self, namespace: &str) -> bool {
        self.served
            .read(|served| served.len() == usize::from(served.contains_key(namespace)))
    }

    /// Takes a line from this cluster's budget. Returns the number of lines that were dropped before it, or `None` if
    /// the budget is exhausted and this line must also be dropped.
    pub(crate) fn take(&self, kind: LineKind, cluster: &ObjectKey, now: Instant) -> Option<u64> {
        let is_alone = self.is_alone(&cluster.namespace);
        self.buckets
            .write(|buckets| buckets.take((kind, cluster), is_alone, now))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.budget.served.write(|served| {
            if let Some(count) = served.get_mut(&self.namespace) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    served.remove(&self.namespace);
                }
            }
        });
    }
}

impl Buckets {
    fn take(
        &mut self,
        (kind, cluster): (LineKind, &ObjectKey),
        is_alone: bool,
        now: Instant,
    ) -> Option<u64> {
        if is_alone {
            let own = self.clusters.get_mut(&(kind, cluster.clone()));
            return Some(own.map_or(0, |own| std::mem::take(&mut own.left_out)));
        }
        let of_namespace = self.namespaces.get_or_insert_with(
            (kind, cluster.namespace.clone()),
            |_, full_at| *full_at <= now,
            || now,
        );
        let of_cluster = self.clusters.get_or_insert_with(
            (kind, cluster.clone()),
            |_, one| one.is_forgotten(now),
            || OfCluster {
                full_at: now,
                left_out: 0,
            },
        );
        let (rate, rate_of_cluster) = kind.rates();
        let (mut namespace, mut own) = (*of_namespace, of_cluster.full_at);
        let is_within =
            rate_of_cluster.take(&mut own, now).is_ok() && rate.take(&mut namespace, now).is_ok();
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
    use super::LineKind::{Grant, Other, Refusal};
    use super::*;
    use crate::shared::testing::most_visited;

    /// The budget of a namespace, while the controller also serves a cluster in another namespace.
    fn budget() -> (Arc<LineBudget>, Served) {
        let budget: Arc<LineBudget> = Arc::default();
        let other = budget.serve("other");
        (budget, other)
    }

    fn cluster(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(namespace, name)
    }

    #[test]
    fn log_lines_are_limited_for_each_namespace() {
        let ((budget, _other), now) = (budget(), Instant::now());
        let lines = |namespace: &str, name: &str, now: Instant| {
            let cluster = cluster(namespace, name);
            let lines = (0..10_000).filter_map(|_| budget.take(Other, &cluster, now));
            lines.count()
        };

        assert_eq!(lines("a", "1", now), 1000);
        assert_eq!(lines("a", "2", now), 1000);
        assert_eq!(lines("a", "3", now), 0);
        assert_eq!(lines("b", "1", now), 1000);
        let later = now + Duration::from_secs(1);
        assert_eq!(lines("a", "3", later), 50);
    }

    #[test]
    fn the_next_log_line_contains_the_number_of_dropped_lines() {
        let ((budget, _other), now) = (budget(), Instant::now());
        let cluster = cluster("a", "1");
        for _ in 0..1007 {
            budget.take(Other, &cluster, now);
        }

        let later = now + OF_NAMESPACE.every * 2;
        assert_eq!(budget.take(Other, &cluster, later), Some(7));
        assert_eq!(budget.take(Other, &cluster, later), None);
        assert_eq!(
            budget.take(Other, &cluster, later + OF_NAMESPACE.every * 2),
            Some(1)
        );
    }

    #[test]
    fn log_budgets_of_deleted_clusters_are_dropped_in_small_steps() {
        let ((budget, _other), now) = (budget(), Instant::now());
        let flood = |from: usize, now: Instant| {
            for number in from..from + 1000 {
                // The namespace's budget is exhausted for most of these lines.
                for _ in 0..3 {
                    budget.take(Other, &cluster("a", &number.to_string()), now);
                }
            }
        };
        flood(0, now);
        let kept = || budget.buckets.read(|buckets| buckets.clusters.len());
        assert_eq!(kept(), 1000);

        let later = now + Duration::from_hours(2);
        let visited = most_visited(|| flood(1000, later));

        let expected = [(Lock::LogBudgets, 4), (Lock::ServedNamespaces, 0)];
        assert_eq!(visited, BTreeMap::from(expected));
        assert_eq!(kept(), 1000, "those of before are forgotten");
    }

    #[test]
    fn log_lines_about_refused_requests_do_not_displace_others() {
        let ((budget, _other), now) = (budget(), Instant::now());
        let cluster = cluster("a", "1");
        let lines = |kind| {
            let lines = (0..10_000).filter_map(|_| budget.take(kind, &cluster, now));
            lines.count()
        };

        assert_eq!(lines(Refusal), 1000);
        assert_eq!(lines(Grant), 5000);
        assert_eq!(lines(Other), 1000);
    }

    #[test]
    fn the_log_lines_of_the_only_served_namespace_are_unlimited() {
        let (budget, now) = (Arc::<LineBudget>::default(), Instant::now());
        let (own, cluster) = (budget.serve("a"), cluster("a", "1"));
        let lines = || {
            let lines = (0..10_000).filter_map(|_| budget.take(Other, &cluster, now));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(lines().len(), 10_000);

        let others = [budget.serve("b"), budget.serve("b")];
        assert_eq!(lines().len(), 1000);
        let [first, second] = others;
        drop(first);
        assert_eq!(lines().len(), 0);

        drop((second, own));
        let left_out = lines();
        assert_eq!(left_out.len(), 10_000);
        assert_eq!(left_out[..2], [19_000, 0], "their number is told");
    }
}
