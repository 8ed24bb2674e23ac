//! The metrics of a workload cluster.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use node_attestation_core::verifier::Expiring;
use parking_lot::Mutex;

use super::{Heartbeat, Metrics, Pending, WatchMetrics};

/// A workload cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    namespace: String,
    name: String,
    state: Mutex<State>,
}

/// The statuses of a condition, each with its word in labels.
pub(crate) const CONDITION_STATUSES: [(&str, &str); 3] =
    [("True", "true"), ("False", "false"), ("Unknown", "unknown")];

/// The values of one cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) phase: Option<&'static str>,
    /// The types of conditions, each with its status.
    pub(super) conditions: Vec<(&'static str, &'static str)>,
    /// The numbers of live records and of tombstones.
    pub(super) records: Option<(u32, u32)>,
    pub(super) earliest_expiry: Option<SystemTime>,
    pub(super) expiring: Option<Expiring>,
    pub(super) unmeasured: Option<usize>,
    /// The requests while they are answered.
    pub(super) pending: Option<Pending>,
}

/// The state of a cluster, as it is told.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterReport {
    /// Its phase.
    pub(crate) phase: &'static str,
    /// The types of conditions, each with its status.
    pub(crate) conditions: Vec<(&'static str, &'static str)>,
    /// The numbers of live records and of tombstones.
    pub(crate) records: Option<(u32, u32)>,
    /// The earliest end of a live node's certificate.
    pub(crate) earliest_expiry: Option<SystemTime>,
    /// The certificate that expires first, of those that vouch for endorsement keys and expire soon.
    pub(crate) expiring: Option<Expiring>,
    /// The number of machines whose firmware does not measure their boot.
    pub(crate) unmeasured: Option<usize>,
}

impl ClusterReport {
    /// Of a cluster whose requests are answered, and of which nothing else is known.
    pub(crate) fn serving() -> Self {
        Self {
            phase: "serving",
            ..Self::default()
        }
    }
}

impl Cluster {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            state: Mutex::default(),
        }
    }

    /// Its labels.
    pub(super) fn labels(&self) -> [(&'static str, String); 2] {
        [
            ("namespace", self.namespace.clone()),
            ("cluster", self.name.clone()),
        ]
    }

    pub(super) fn state(&self) -> State {
        self.state.lock().clone()
    }
}

/// The metrics of a workload cluster. Its series end when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterMetrics {
    metrics: Metrics,
    is_only: bool,
    cluster: Option<Arc<Cluster>>,
}

impl ClusterMetrics {
    pub(super) fn new(metrics: Metrics, cluster: Option<Arc<Cluster>>) -> Self {
        Self {
            metrics,
            is_only: false,
            cluster,
        }
    }

    /// The same, of the only cluster of this process: the process lives as long as the cluster's requests are answered.
    pub(crate) fn only(self) -> Self {
        Self {
            is_only: true,
            ..self
        }
    }

    /// The signs of life of the loop that answers its requests.
    pub(crate) fn heartbeat(&self, limit: Duration) -> Heartbeat {
        if self.is_only {
            self.metrics.heartbeat("the requests", limit)
        } else {
            Heartbeat::default()
        }
    }

    /// The metrics of the process.
    pub(crate) fn process(&self) -> &Metrics {
        &self.metrics
    }

    /// The metrics of a watch of its API server.
    pub(crate) fn watch(&self, kind: &'static str) -> WatchMetrics {
        self.metrics.watch_in(kind, self.cluster.clone())
    }

    /// Replaces what is told of it.
    pub(crate) fn report(&self, report: impl FnOnce() -> ClusterReport) {
        let Some(cluster) = &self.cluster else { return };
        let report = report();
        let mut state = cluster.state.lock();
        state.phase = Some(report.phase);
        state.conditions = report.conditions;
        state.records = report.records;
        state.earliest_expiry = report.earliest_expiry;
        state.expiring = report.expiring;
        state.unmeasured = report.unmeasured;
    }

    /// Its requests are those of `pending` until [`stopped`](Self::stopped).
    pub(crate) fn answering(&self, pending: Pending) {
        if let Some(cluster) = &self.cluster {
            cluster.state.lock().pending = Some(pending);
        }
    }

    /// Its requests are not answered any more.
    pub(crate) fn stopped(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.state.lock().pending = None;
        }
    }
}
