//! The health of this process: what Kubernetes' probes ask.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Why this process is not live, or not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotWell {
    /// It has only begun.
    #[error("starting")]
    Starting,
    /// Objects were not listed yet.
    #[error("not listed yet: {}", .0.join(", "))]
    NotListed(Vec<&'static str>),
    /// A loop gives no sign of life.
    #[error("no sign of life for {} s: {of}", silence.as_secs())]
    Silent {
        /// The loop.
        of: &'static str,
        /// For how long.
        silence: Duration,
    },
}

/// The kinds that must have been listed.
#[derive(Debug, Default)]
pub(crate) struct Requirements(Mutex<Option<BTreeSet<&'static str>>>);

impl Requirements {
    pub(super) fn set(&self, kinds: &[&'static str]) {
        *self.0.lock() = Some(kinds.iter().copied().collect());
    }

    /// Takes the kinds that are listed; none has to be listed twice.
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

/// The last sign of life of a loop.
#[derive(Debug)]
pub(crate) struct Beat {
    of: &'static str,
    limit: Duration,
    last: Mutex<Instant>,
}

impl Beat {
    pub(super) fn new(of: &'static str, limit: Duration, now: Instant) -> Self {
        Self {
            of,
            limit,
            last: Mutex::new(now),
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

/// The signs of life of a loop.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat(pub(super) Option<Arc<Beat>>);

impl Heartbeat {
    /// The loop goes on.
    pub(crate) fn beat(&self) {
        if let Some(beat) = &self.0 {
            *beat.last.lock() = Instant::now();
        }
    }

    /// Ends after `pause`; never, if nobody asks for the health of this process.
    pub(crate) async fn pause(&self, pause: Duration) {
        match &self.0 {
            Some(_) => tokio::time::sleep(pause).await,
            None => std::future::pending().await,
        }
    }
}
