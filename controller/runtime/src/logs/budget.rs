//! The limit of log lines about refused requests of each namespace: a tenant's API server invents any number of them.

use std::collections::HashMap;
use std::time::Duration;

use node_attestation_core::rate_limit::Rate;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::object_key::ObjectKey;

/// The lines of one namespace: those of a thousand machines that join at once.
const OF_NAMESPACE: Rate = Rate {
    burst: 2000,
    every: Duration::from_millis(20),
};

/// The lines of one cluster: half of it.
const OF_CLUSTER: Rate = Rate {
    burst: 1000,
    every: Duration::from_millis(40),
};

/// The number of buckets at which full ones are forgotten.
const MAX_BUCKETS: usize = 4096;

/// The lines that each namespace, and each cluster in it, may write.
#[derive(Debug, Default)]
pub(crate) struct LineBudget(Mutex<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    /// The times at which they are full.
    namespaces: HashMap<String, Instant>,
    clusters: HashMap<ObjectKey, OfCluster>,
}

#[derive(Debug)]
struct OfCluster {
    full_at: Instant,
    left_out: u64,
}

impl LineBudget {
    /// Takes a line of this cluster. Returns the number of lines that were left out before it; `None` if there is none
    /// left, and this one is left out too.
    pub(crate) fn take(&self, cluster: &ObjectKey, now: Instant) -> Option<u64> {
        let mut buckets = self.0.lock();
        let Buckets {
            namespaces,
            clusters,
        } = &mut *buckets;
        if clusters.len() >= MAX_BUCKETS && !clusters.contains_key(cluster) {
            clusters.retain(|_, one| one.full_at > now || one.left_out > 0);
            namespaces.retain(|_, full_at| *full_at > now);
        }
        let of_namespace = namespaces.entry(cluster.namespace.clone()).or_insert(now);
        let of_cluster = clusters.entry(cluster.clone()).or_insert(OfCluster {
            full_at: now,
            left_out: 0,
        });
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
    use super::*;

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
    async fn the_next_line_tells_how_many_were_left_out() {
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
}
