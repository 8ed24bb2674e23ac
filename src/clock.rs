//! The wall clock and deadlines.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longer than any wait of this program. The limit prevents an overflow with extreme durations.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// The wall clock.
///
/// Functions that decide take the time as an argument. Only their callers read the clock with this function.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// The time since 1970. Zero for an earlier time.
#[expect(
    clippy::disallowed_methods,
    reason = "1970 is no reading of a clock: this is the time as a number"
)]
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The whole seconds since 1970. Zero for an earlier time.
pub fn unix_seconds(time: SystemTime) -> u64 {
    since_epoch(time).as_secs()
}

/// The time from `start` to `end`, the ends of a validity or of a pause that is stored. Zero if `end` is earlier.
#[expect(
    clippy::disallowed_methods,
    reason = "an end is a wall-clock time: a certificate has no other, and no monotonic clock outlives a boot"
)]
pub fn until(end: SystemTime, start: SystemTime) -> Duration {
    end.duration_since(start).unwrap_or_default()
}

/// The age at `now` of something that an earlier process wrote to the disk. `None` if it is from the future: then the
/// clock was set back, and the age is unknown.
#[expect(
    clippy::disallowed_methods,
    reason = "each run is a process, and no monotonic clock outlives a boot"
)]
pub fn age(written: SystemTime, now: SystemTime) -> Option<Duration> {
    now.duration_since(written).ok()
}

/// The difference of two clocks, whichever is ahead.
pub fn apart(one: SystemTime, other: SystemTime) -> Duration {
    until(one.max(other), one.min(other))
}

/// A deadline on the monotonic clock. Setting the wall clock does not move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The moment `duration` from now, at most a day.
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

    /// The earlier of this deadline and the moment `duration` from now, for one step of a longer
    /// task.
    #[must_use]
    pub fn within(self, duration: Duration) -> Self {
        self.min(Self::after(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes() {
        assert!(Deadline::after(Duration::ZERO).passed());
        assert!(!Deadline::after(Duration::from_mins(1)).passed());
        assert_eq!(Deadline::after(Duration::ZERO).remaining(), Duration::ZERO);
    }

    #[test]
    fn a_step_ends_no_later_than_the_work_it_belongs_to() {
        let work = Deadline::after(Duration::from_mins(1));

        assert_eq!(work.within(Duration::from_hours(1)), work);
        assert!(work.within(Duration::from_secs(1)) < work);
    }

    #[test]
    fn a_time_has_an_age_or_an_end_and_never_a_negative_one() {
        let second = Duration::from_secs(1);
        let (before, after) = (UNIX_EPOCH + second, UNIX_EPOCH + 3 * second);

        assert_eq!(until(after, before), 2 * second);
        assert_eq!(until(before, after), Duration::ZERO);
        assert_eq!(age(before, after), Some(2 * second));
        assert_eq!(age(after, before), None);
        assert_eq!(apart(before, after), 2 * second);
        assert_eq!(apart(after, before), 2 * second);
        assert_eq!(unix_seconds(UNIX_EPOCH - second), 0);
    }

    #[test]
    fn a_maximal_duration_does_not_overflow() {
        assert!(!Deadline::after(Duration::MAX).passed());
    }
}
