//! The health of this process, for Kubernetes probes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use node_attestation_core::unshared::Unshared;
use tokio::time::Instant;

/// The reason why this process is not live or not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotWell {
    /// The process has just started.
    #[error("starting")]
    Starting,
    /// Some objects have not been listed yet.
    #[error("not listed yet: {}", .0.join(", "))]
    NotListed(Vec<&'static str>),
    /// A loop has stopped sending heartbeats.
    #[error("no heartbeat for {} s: {of}", silence.as_secs())]
    Silent {
        /// The loop.
        of: &'static str,
        /// The time since the last heartbeat.
        silence: Duration,
    },
}

/// The kinds that must be listed. Not shared: only the probes use this lock.
#[derive(Debug, Default)]
pub(crate) struct Requirements(Unshared<Option<BTreeSet<&'static str>>>);

impl Requirements {
    pub(super) fn set(&self, kinds: &[&'static str]) {
        *self.0.lock() = Some(kinds.iter().copied().collect());
    }

    /// Removes the kinds that have been listed, because each kind must be listed only once.
    pub(super) fn check(&self, listed: impl Iterator<Item = &'static str>) -> Result<(), NotWell> {
        let mut missing = self.0.lock();
        let missing = missing.as_mut().ok_or(NotWell::Starting)?;
        for kind in listed {
            missing.remove(kind);
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(NotWell::NotListed(missing.iter().copied().collect()))
    }
}

/// The last heartbeat of a loop.
#[derive(Debug)]
pub(crate) struct Beat {
    of: &'static str,
    limit: Duration,
    /// Not shared: only the loop and the probes use this lock.
    last: Unshared<Instant>,
}

impl Beat {
    pub(super) fn new(of: &'static str, limit: Duration, now: Instant) -> Self {
        Self {
            of,
            limit,
            last: Unshared::new(now),
        }
    }

    pub(super) fn check(&self) -> Result<(), NotWell> {
        let silence = self.last.lock().elapsed();
        if silence <= self.limit {
            return Ok(());
        }
        Err(NotWell::Silent {
            of: self.of,
            silence,
        })
    }
}

/// The heartbeat of a loop.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat(pub(super) Option<Arc<Beat>>);

impl Heartbeat {
    /// Records that the loop is running.
    pub(crate) fn beat(&self) {
        if let Some(beat) = &self.0 {
            *beat.last.lock() = Instant::now();
        }
    }

    /// Completes after `pause`. Never completes if this process does not report its health.
    pub(crate) async fn pause(&self, pause: Duration) {
        match &self.0 {
            Some(_) => tokio::time::sleep(pause).await,
            None => std::future::pending().await,
        }
    }
}
