//! A circuit breaker for EC2: after a failure it gets no calls for a while.

use std::time::Duration;

use tokio::time::Instant;

use super::Outage;

/// The state of the circuit breaker.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Option<Failed>);

#[derive(Debug)]
struct Failed {
    outage: Outage,
    failures: u32,
    until: Instant,
}

impl CircuitBreaker {
    /// Whether the last call failed.
    pub(super) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Why EC2 is left alone now.
    pub(super) fn outage(&self, now: Instant) -> Option<Outage> {
        let failed = self.0.as_ref().filter(|failed| now < failed.until)?;
        Some(failed.outage.clone())
    }

    /// Learns how a call ended. EC2 is left alone for the first pause, then for twice as long each
    /// time, and for the second one at most.
    pub(super) fn settle(
        &mut self,
        outage: Option<&Outage>,
        now: Instant,
        (pause, longest): (Duration, Duration),
    ) {
        let Some(outage) = outage else {
            self.0 = None;
            return;
        };
        // Calls that failed together count once.
        if self.outage(now).is_some() {
            return;
        }
        let failures = self.0.as_ref().map_or(0, |failed| failed.failures);
        let pause = pause.saturating_mul(2_u32.saturating_pow(failures));
        self.0 = Some(Failed {
            outage: outage.clone(),
            failures: failures.saturating_add(1),
            until: now + pause.min(longest),
        });
    }
}
