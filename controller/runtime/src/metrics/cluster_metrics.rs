//! The metrics of a workload cluster, which its tasks use.

use std::sync::Arc;
use std::time::Duration;

use super::clusters::{ClusterReport, ClusterValues};
use super::{DENIED, Heartbeat, Metrics, Pending, WatchMetrics};

/// The metrics of a workload cluster. Its time series are removed when the last clone is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterMetrics {
    metrics: Metrics,
    is_only: bool,
    cluster: Option<Arc<ClusterValues>>,
}

impl ClusterMetrics {
    pub(super) fn new(metrics: Metrics, cluster: Option<Arc<ClusterValues>>) -> Self {
        Self {
            metrics,
            is_only: false,
            cluster,
        }
    }

    /// Marks the cluster as the only one in this process. The process is then live only while the cluster's requests
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

    /// The metrics for a watch of the cluster's API server.
    pub(crate) fn watch(&self, kind: &'static str) -> WatchMetrics {
        self.metrics.watch_in(kind, self.cluster.clone())
    }

    /// Counts a decision on a request, like [`Metrics::decided`]. For a denial, also increments the cluster's counter.
    pub(crate) fn decided(
        &self,
        (outcome, reason): (&'static str, &'static str),
        provider: Option<&str>,
        took: Duration,
    ) {
        self.metrics.decided((outcome, reason), provider, took);
        if outcome == DENIED
            && let Some(cluster) = &self.cluster
        {
            cluster.denied(reason);
        }
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
        state.overdue = report.overdue;
        state.exempt = report.exempt;
        state.overlaps = report.overlaps;
        state.approvals = report.approvals;
        state.expiring = report.expiring;
        state.unmeasured = report.unmeasured;
    }

    /// Reports the number of requests in `pending`, until [`stopped`](Self::stopped) is called.
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
