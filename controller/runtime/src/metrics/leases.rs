//! The metrics of a Lease for which this replica is a candidate.

use std::sync::Arc;

use node_attestation_core::unshared::Unshared;
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

/// A Lease.
#[derive(Debug)]
pub(crate) struct Lease {
    name: String,
    terms: Counter,
    /// The time of the last renewal, while this replica holds the Lease. Not shared: only the leader election uses this
    /// lock.
    renewed: Unshared<Option<Instant>>,
}

impl Lease {
    pub(super) fn new(name: &str, terms: Counter) -> Self {
        Self {
            name: name.to_owned(),
            terms,
            renewed: Unshared::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The seconds since the last renewal. `None` if this replica does not hold the Lease.
    pub(super) fn age(&self) -> Option<f64> {
        let renewed = *self.renewed.lock();
        renewed.map(|renewed| renewed.elapsed().as_secs_f64())
    }
}

/// The metrics of a Lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaseMetrics(pub(super) Option<Arc<Lease>>);

impl LeaseMetrics {
    /// Records the start of a term.
    pub(crate) fn taken(&self, renewed: Instant) {
        if let Some(lease) = &self.0 {
            lease.terms.inc();
            *lease.renewed.lock() = Some(renewed);
        }
    }

    /// Records a renewal.
    pub(crate) fn renewed(&self, renewed: Instant) {
        if let Some(lease) = &self.0 {
            *lease.renewed.lock() = Some(renewed);
        }
    }

    /// Records the end of a term.
    pub(crate) fn lost(&self) {
        if let Some(lease) = &self.0 {
            *lease.renewed.lock() = None;
        }
    }
}
