//! The metrics and the health of a controller.
//!
//! Each component that counts events gets a [`Metrics`]. By default, metrics are off, and no values are stored.
//!
//! # Guarantees
//!
//! - Label values are identifiers in this program, well-known reasons, and the names and namespaces of Clusters. With
//!   other data, a tenant could create any number of series over time. Labels never contain secrets.
//! - When a cluster, a watch or a Lease ends, its series end.

mod catalogue;
mod cluster_metrics;
mod clusters;
mod encode;
mod health;
mod leases;
mod live;
mod pending;
mod process;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use node_attestation_core::verifier::Verifiers;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

pub(crate) use cluster_metrics::ClusterMetrics;
pub(crate) use clusters::{CONDITION_STATUSES, ClusterReport};
pub use health::NotWell;
pub(crate) use health::{Heartbeat, Requirements};
pub(crate) use leases::LeaseMetrics;
pub(crate) use pending::Pending;
pub(crate) use watches::WatchMetrics;

use clusters::ClusterValues;
use leases::Lease;
use live::Live;
use watches::Watch;

use crate::clock::now;

/// The bucket bounds for the duration of a decision, in seconds. Most decisions take milliseconds, and a decision that
/// calls AWS takes a few seconds. The deadline is 2 minutes.
const DURATIONS: [f64; 11] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0,
];

/// The external signer has not reported its problems.
const NO_STATUS: u64 = u64::MAX;

/// The labels of a counter, in the order of the catalogue.
type Labels<const N: usize> = [(&'static str, String); N];

/// The metrics and the health of one process. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    version: &'static str,
    started: SystemTime,
    csrs: Family<Labels<3>, Counter>,
    durations: Family<Labels<1>, Histogram, fn() -> Histogram>,
    record_writes: Family<Labels<2>, Counter>,
    status_writes: Family<Labels<1>, Counter>,
    cloud_requests: Family<Labels<3>, Counter>,
    signer_requests: Family<Labels<2>, Counter>,
    signer_durations: Family<Labels<2>, Histogram, fn() -> Histogram>,
    /// The number of CAs that the external signer cannot use. [`NO_STATUS`] before its first status.
    signer_problems: AtomicU64,
    watch_failures: Family<Labels<1>, Counter>,
    terms: Family<Labels<1>, Counter>,
    clusters: Live<ClusterValues>,
    /// The number of clusters that are not served because of memory limits.
    left_out: AtomicUsize,
    watches: Live<Watch>,
    leases: Live<Lease>,
    beats: Live<health::Beat>,
    requirements: Requirements,
}

/// The text formats of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

/// The outcome of a denied request.
pub(crate) const DENIED: &str = "denied";

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// The object was written.
    Ok,
    /// Another client has changed or created the object.
    Conflict,
    /// The API server did not respond, or rejected the write.
    Failed,
}

impl Written {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
        }
    }
}

/// The result of a cloud API call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudResult {
    /// The cloud responded.
    Ok,
    /// The cloud throttled the call.
    Throttled,
    /// The cloud rejected the call, or did not confirm the claim.
    Refused,
    /// The cloud did not respond in time.
    TimedOut,
    /// Any other error.
    Failed,
}

impl CloudResult {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Throttled => "throttled",
            Self::Refused => "refused",
            Self::TimedOut => "timeout",
            Self::Failed => "failed",
        }
    }
}

impl Metrics {
    /// Creates the metrics of a program with this version. The start time of the program is the current time.
    pub fn new(version: &'static str) -> Self {
        Self(Some(Arc::new(Inner {
            version,
            started: now(),
            csrs: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            record_writes: Family::default(),
            status_writes: Family::default(),
            cloud_requests: Family::default(),
            signer_requests: Family::default(),
            signer_durations: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            signer_problems: AtomicU64::new(NO_STATUS),
            watch_failures: Family::default(),
            terms: Family::default(),
            clusters: Live::default(),
            left_out: AtomicUsize::new(0),
            watches: Live::default(),
            leases: Live::default(),
            beats: Live::default(),
            requirements: Requirements::default(),
        })))
    }

    /// The metrics as text. Empty if the metrics are off.
    pub fn text(&self, format: Format) -> String {
        self.0
            .as_ref()
            .map_or_else(String::new, |inner| encode::text(inner, format))
    }

    /// Initializes the denial counters for these providers with 0. Prometheus does not detect an increase in a series
    /// that starts at 1, so the first denial would not trigger an alert.
    pub(crate) fn serves(&self, verifiers: &Verifiers) {
        let Some(inner) = &self.0 else { return };
        for (provider, reason) in verifiers.denials() {
            let labels = [
                ("outcome", DENIED.to_owned()),
                ("reason", reason.to_owned()),
                ("provider", provider.to_string()),
            ];
            drop(inner.csrs.get_or_create(&labels));
        }
    }

    /// Counts a decision on a request. `provider` must be one of the served providers.
    pub(crate) fn decided(
        &self,
        (outcome, reason): (&'static str, &'static str),
        provider: Option<&str>,
        took: Duration,
    ) {
        let Some(inner) = &self.0 else { return };
        let labels = [
            ("outcome", outcome.to_owned()),
            ("reason", reason.to_owned()),
            ("provider", provider.unwrap_or("none").to_owned()),
        ];
        inner.csrs.get_or_create(&labels).inc();
        let labels = [("outcome", outcome.to_owned())];
        let durations = inner.durations.get_or_create(&labels);
        durations.observe(took.as_secs_f64());
    }

    /// Counts a write of a record.
    pub(crate) fn record_written(&self, operation: &'static str, written: Written) {
        let Some(inner) = &self.0 else { return };
        let labels = [
            ("operation", operation.to_owned()),
            ("result", written.as_str().to_owned()),
        ];
        inner.record_writes.get_or_create(&labels).inc();
    }

    /// Counts a write of the status of a `KubeletAuthentication`.
    pub(crate) fn status_written(&self, written: Written) {
        let Some(inner) = &self.0 else { return };
        let labels = [("result", written.as_str().to_owned())];
        inner.status_writes.get_or_create(&labels).inc();
    }

    /// Counts a cloud API call.
    pub fn cloud_called(
        &self,
        (service, operation): (&'static str, &'static str),
        result: CloudResult,
    ) {
        let Some(inner) = &self.0 else { return };
        let labels = [
            ("service", service.to_owned()),
            ("operation", operation.to_owned()),
            ("result", result.as_str().to_owned()),
        ];
        inner.cloud_requests.get_or_create(&labels).inc();
    }

    /// Counts a call to the external signer, with the name of its gRPC status code.
    pub(crate) fn signer_called(
        &self,
        operation: &'static str,
        code: &'static str,
        took: Duration,
    ) {
        let Some(inner) = &self.0 else { return };
        let labels = [
            ("operation", operation.to_owned()),
            ("code", code.to_owned()),
        ];
        inner.signer_requests.get_or_create(&labels).inc();
        let durations = inner.signer_durations.get_or_create(&labels);
        durations.observe(took.as_secs_f64());
    }

    /// Sets the number of CAs that the external signer cannot use.
    pub(crate) fn signer_problems(&self, count: u32) {
        if let Some(inner) = &self.0 {
            inner.signer_problems.store(count.into(), Ordering::Relaxed);
        }
    }

    /// Sets the number of clusters that are not served because their namespace, or all namespaces together, use too
    /// much memory.
    pub(crate) fn left_out_clusters(&self, count: usize) {
        if let Some(inner) = &self.0 {
            inner.left_out.store(count, Ordering::Relaxed);
        }
    }

    /// The metrics for a cluster. The metrics are removed when the last clone is dropped.
    pub(crate) fn cluster(&self, namespace: &str, name: &str) -> ClusterMetrics {
        let added = self.0.as_ref().map(|inner| {
            let cluster = ClusterValues::new(namespace, name);
            inner.clusters.add(cluster)
        });
        ClusterMetrics::new(self.clone(), added)
    }

    /// The metrics for a watch of this kind. The metrics are removed when the last clone is dropped.
    pub(crate) fn watch(&self, kind: &'static str) -> WatchMetrics {
        self.watch_in(kind, None)
    }

    fn watch_in(&self, kind: &'static str, cluster: Option<Arc<ClusterValues>>) -> WatchMetrics {
        WatchMetrics(self.0.as_ref().map(|inner| {
            let failures = [("kind", kind.to_owned())];
            let failures = inner.watch_failures.get_or_create_owned(&failures);
            inner.watches.add(Watch::new(kind, cluster, failures))
        }))
    }

    /// The metrics for the Lease with this name. The metrics are removed when the result is dropped.
    pub(crate) fn lease(&self, name: &str) -> LeaseMetrics {
        LeaseMetrics(self.0.as_ref().map(|inner| {
            let terms = inner
                .terms
                .get_or_create_owned(&[("lease", name.to_owned())]);
            inner.leases.add(Lease::new(name, terms))
        }))
    }

    /// A loop's heartbeat, which the loop must send at least once within `limit`. The heartbeat ends when the result is
    /// dropped.
    pub(crate) fn heartbeat(&self, of: &'static str, limit: Duration) -> Heartbeat {
        Heartbeat(self.0.as_ref().map(|inner| {
            let beat = health::Beat::new(of, limit, Instant::now());
            inner.beats.add(beat)
        }))
    }

    /// Sets the kinds that must be listed before this process is ready.
    pub(crate) fn require_lists(&self, kinds: &[&'static str]) {
        if let Some(inner) = &self.0 {
            inner.requirements.set(kinds);
        }
    }

    /// Whether the loops of this process are running.
    ///
    /// # Errors
    ///
    /// Returns an error if a loop has not sent a heartbeat for too long.
    pub fn live(&self) -> Result<(), NotWell> {
        let mut beats = self.0.iter().flat_map(|inner| inner.beats.all());
        beats.try_for_each(|beat| beat.check())
    }

    /// Whether the required kinds have been listed once. After that, the process remains ready, because an outage is
    /// not a reason to redirect traffic.
    ///
    /// # Errors
    ///
    /// Returns an error if a required kind has not been listed.
    pub fn ready(&self) -> Result<(), NotWell> {
        self.0.as_ref().map_or(Ok(()), |inner| {
            let listed = inner.watches.all();
            let listed = listed.iter().filter(|watch| watch.is_listed());
            inner.requirements.check(listed.map(|watch| watch.kind()))
        })
    }
}

#[cfg(test)]
mod tests;
