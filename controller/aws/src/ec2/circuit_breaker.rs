//! A circuit breaker for EC2: after a failure it gets no calls for a while.

use tokio::time::Instant;

use super::OutageKind;
use super::channel::CallLimits;

/// The state of the circuit breaker.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Option<Failed>);

#[derive(Debug)]
struct Failed {
    outage: OutageKind,
    failures: u32,
    until: Instant,
}

impl CircuitBreaker {
    /// Whether the last call failed.
    pub(super) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Whether EC2 may be called now.
    ///
    /// # Errors
    ///
    /// Why it is left alone.
    pub(super) fn check(&self, now: Instant) -> Result<(), OutageKind> {
        match self.0.as_ref().filter(|failed| now < failed.until) {
            Some(failed) => Err(failed.outage.clone()),
            None => Ok(()),
        }
    }

    /// Learns how a call ended. EC2 is left alone for a pause, then for twice as long each time,
    /// and for the longest pause at most.
    pub(super) fn settle(
        &mut self,
        outage: Option<&OutageKind>,
        now: Instant,
        limits: &CallLimits,
    ) {
        let Some(outage) = outage else {
            self.0 = None;
            return;
        };
        // Calls that failed together count once.
        if self.check(now).is_err() {
            return;
        }
        let failures = self.0.as_ref().map_or(0, |failed| failed.failures);
        let pause = limits.pause.saturating_mul(2_u32.saturating_pow(failures));
        self.0 = Some(Failed {
            outage: outage.clone(),
            failures: failures.saturating_add(1),
            until: now + pause.min(limits.longest_pause),
        });
    }
}
