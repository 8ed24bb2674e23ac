//! The metrics of a workload cluster.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use node_attestation_core::unshared::Unshared;
use node_attestation_core::verifier::Expiring;

use super::{Heartbeat, Metrics, Pending, WatchMetrics};

/// A workload cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    namespace: String,
    name: String,
    /// Only the tasks of this cluster and the page of metrics use it.
    state: Unshared<State>,
}

/// The statuses of a condition, each with its label value.
pub(crate) const CONDITION_STATUSES: [(&str, &str); 3] =
    [("True", "true"), ("False", "false"), ("Unknown", "unknown")];

/// The values of one cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) phase: Option<&'static str>,
    /// The condition types, each with its status.
    pub(super) conditions: Vec<(&'static str, &'static str)>,
    /// The numbers of live records and of tombstones.
    pub(super) records: Option<(u32, u32)>,
    pub(super) earliest_expiry: Option<SystemTime>,
    pub(super) expiring: Option<Expiring>,
    pub(super) unmeasured: Option<usize>,
    /// The pending requests while the cluster is served.
    pub(super) pending: Option<Pending>,
}

/// The reported state of a cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterReport {
    /// The phase.
    pub(crate) phase: &'static str,
    /// The condition types, each with its status.
    pub(crate) conditions: Vec<(&'static str, &'static str)>,
    /// The numbers of live records and of tombstones.
    pub(crate) records: Option<(u32, u32)>,
    /// The earliest expiry of a live node's certificate.
    pub(crate) earliest_expiry: Option<SystemTime>,
    /// The certificate that expires first, among the certificates for endorsement keys that expire soon.
    pub(crate) expiring: Option<Expiring>,
    /// The number of machines whose firmware does not measure their boot.
    pub(crate) unmeasured: Option<usize>,
}

impl ClusterReport {
    /// The state of a served cluster without further data.
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
            state: Unshared::default(),
        }
    }

    /// The labels of the cluster.
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

    /// Marks the cluster as the only one of this process. The process is then live only while the cluster's requests
    /// are served.
    pub(crate) fn only(self) -> Self {
        Self {
            is_only: true,
            ..self
        }
    }

    /// The heartbeat of the loop that serves the cluster's requests.
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

    /// The metrics of a watch of the cluster's API server.
    pub(crate) fn watch(&self, kind: &'static str) -> WatchMetrics {
        self.metrics.watch_in(kind, self.cluster.clone())
    }

    /// Replaces the reported state.
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

    /// Reports the requests in `pending` until [`stopped`](Self::stopped).
    pub(crate) fn answering(&self, pending: Pending) {
        if let Some(cluster) = &self.cluster {
            cluster.state.lock().pending = Some(pending);
        }
    }

    /// Stops reporting requests.
    pub(crate) fn stopped(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.state.lock().pending = None;
        }
    }
}
