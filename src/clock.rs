//! The wall clock and deadlines.

use std::time::{Duration, Instant, SystemTime};

use kubelet_attestation::contract::CERTIFICATE_BACKDATING;
pub use kubelet_attestation::time::{age, apart, since_epoch, unix_seconds, until};

/// The maximum time by which this machine's clock can be behind the signer's clock.
pub(crate) const CLOCK_LEEWAY: Duration = CERTIFICATE_BACKDATING;

/// The maximum duration of a deadline, which is longer than any wait of this program. It prevents an overflow with
/// extreme durations.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// The wall clock.
///
/// Functions that make decisions take the time as an argument. Only the callers of these functions read the clock with
/// this function.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// A deadline on the monotonic clock. Setting the wall clock does not move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline `duration` from now, at most one day.
    pub fn after(duration: Duration) -> Self {
        Self(Instant::now() + duration.min(LONGEST_WAIT))
    }

    /// The remaining time; zero after the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    pub fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the earlier of this deadline and a deadline `duration` from now, for one step of a longer task.
    #[must_use]
    pub fn within(self, duration: Duration) -> Self {
        self.min(Self::after(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_expires_after_its_duration() {
        assert!(Deadline::after(Duration::ZERO).passed());
        assert!(!Deadline::after(Duration::from_mins(1)).passed());
        assert_eq!(Deadline::after(Duration::ZERO).remaining(), Duration::ZERO);
    }

    #[test]
    fn the_deadline_of_a_step_is_never_after_the_deadline_of_its_task() {
        let work = Deadline::after(Duration::from_mins(1));

        assert_eq!(work.within(Duration::from_hours(1)), work);
        assert!(work.within(Duration::from_secs(1)) < work);
    }

    #[test]
    fn a_deadline_after_the_longest_duration_does_not_overflow() {
        assert!(!Deadline::after(Duration::MAX).passed());
    }
}
