//! A circuit breaker for EC2: after a failure, calls pause.

use kubelet_attestation::backoff::Backoff;
use tokio::time::Instant;

use super::OutageKind;
use super::call_limits::CallLimits;

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

    /// Whether EC2 can be called now.
    ///
    /// # Errors
    ///
    /// Returns the last failure while calls pause.
    pub(super) fn check(&self, now: Instant) -> Result<(), OutageKind> {
        match self.0.as_ref().filter(|failed| now < failed.until) {
            Some(failed) => Err(failed.outage.clone()),
            None => Ok(()),
        }
    }

    /// Records the outcome of a call. Each failure doubles the pause, up to the maximum.
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
        // Calls that fail at the same time count as one failure.
        if self.check(now).is_err() {
            return;
        }
        let failures = self.0.as_ref().map_or(0, |failed| failed.failures);
        let pauses = Backoff {
            first: limits.pause,
            longest: limits.longest_pause,
        };
        self.0 = Some(Failed {
            outage: outage.clone(),
            failures: failures.saturating_add(1),
            until: now + pauses.after(failures),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ec2::Limits;

    #[test]
    fn calls_resume_after_the_pause() {
        let limits = Limits::default().calls;
        let (mut breaker, now) = (CircuitBreaker::default(), Instant::now());

        breaker.settle(Some(&OutageKind::TimedOut), now, &limits);

        let end = now + limits.pause;
        let last = breaker.check(end - Duration::from_millis(1));
        assert!(matches!(last, Err(OutageKind::TimedOut)), "{last:?}");
        assert!(breaker.check(end).is_ok());
    }
}
