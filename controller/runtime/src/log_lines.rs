//! The log lines that a tenant can cause, with one budget for each namespace.

mod budget;

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use node_attestation_core::log_lines::LogLines;

pub(crate) use budget::{LineKind, Served};

use budget::LineBudget;

use crate::object_key::ObjectKey;

static PROCESS: LazyLock<Arc<LineBudget>> = LazyLock::new(Arc::default);

/// The log lines that one Cluster's tenant can cause, limited by the budget of its namespace. All clusters of this
/// process share the budgets.
#[derive(Debug, Clone)]
pub struct ClusterLines {
    budget: Arc<LineBudget>,
    cluster: ObjectKey,
    kind: LineKind,
    /// The cluster name in the lines.
    shown: Option<String>,
    clock: fn() -> Instant,
}

impl ClusterLines {
    /// The lines about this Cluster. If there is no management cluster, the namespace and the name are empty.
    pub fn of(cluster: &ObjectKey) -> Self {
        Self::within(&PROCESS, cluster)
    }

    /// The lines about other objects in this namespace.
    pub fn of_namespace(namespace: &str) -> Self {
        Self::of(&ObjectKey::new(namespace, ""))
    }

    fn within(budget: &Arc<LineBudget>, cluster: &ObjectKey) -> Self {
        Self {
            budget: budget.clone(),
            cluster: cluster.clone(),
            kind: LineKind::Other,
            shown: (!cluster.name.is_empty()).then(|| cluster.to_string()),
            clock: Instant::now,
        }
    }

    /// The lines about the Cluster's requests that are not answered.
    pub(crate) fn of_refusals(&self) -> Self {
        let kind = LineKind::Refusal;
        Self {
            kind,
            ..self.clone()
        }
    }

    /// The lines about valid evidence in the Cluster's requests.
    #[must_use]
    pub fn of_evidence(self) -> Self {
        let kind = LineKind::Grant;
        Self { kind, ..self }
    }

    /// The namespace of the Cluster.
    pub(crate) fn namespace(&self) -> &str {
        &self.cluster.namespace
    }

    /// Counts the cluster as served until the result is dropped. While clusters in several namespaces are served, the
    /// lines of each namespace are limited.
    pub(crate) fn served(&self) -> Served {
        self.budget.serve(&self.cluster.namespace)
    }

    /// Takes a line of this kind from the budget, like [`take`](LogLines::take).
    pub(crate) fn take_of(&self, kind: LineKind) -> Option<u64> {
        self.budget.take(kind, &self.cluster, (self.clock)())
    }
}

impl LogLines for ClusterLines {
    fn cluster(&self) -> Option<&str> {
        self.shown.as_deref()
    }

    fn take(&self) -> Option<u64> {
        self.take_of(self.kind)
    }
}

#[cfg(test)]
mod tests {
    use node_attestation_core::cluster_line;
    use tracing::Level;

    use super::*;
    use crate::testing::ThreadLog;

    #[test]
    fn many_log_lines_of_a_namespace_do_not_displace_those_of_another() {
        static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
        let budget = Arc::default();
        let lines = |namespace: &str, name: &str| ClusterLines {
            clock: || *NOW,
            ..ClusterLines::within(&budget, &ObjectKey::new(namespace, name))
        };
        let (noisy, other) = (lines("a", "1"), lines("b", "1"));
        let served = [noisy.served(), other.served()];
        let log = ThreadLog::start(Level::INFO);
        for number in 0..10_000 {
            let cluster = lines("a", &(number % 50).to_string());
            cluster_line!(&cluster, WARN, number, "a fault");
        }
        cluster_line!(&other, ERROR, "of another");

        assert_eq!(log.count(&["WARN", "cluster=\"a/", "a fault"]), 2000);
        assert_eq!(log.count(&["ERROR", "cluster=\"b/1\"", "of another"]), 1);
        assert_eq!(log.count(&["left_out"]), 0, "no line came later");

        // The namespace is now the only namespace, so its lines are no longer limited.
        drop(served);
        cluster_line!(&noisy, WARN, "a later fault");
        assert_eq!(log.count(&["a later fault", "left_out=160"]), 1);
    }
}
