//! Differences between wall-clock times.
//!
//! The wall clock can be set at any time, so the difference between two readings is not an elapsed time. A decision
//! about an elapsed time uses a monotonic clock, or a timestamp from an API server or a cloud. clippy rejects other
//! differences of wall-clock times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970. Zero for an earlier time.
#[expect(
    clippy::disallowed_methods,
    reason = "1970 is not a clock reading: this is the time as a number"
)]
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The whole seconds since 1970. Zero for an earlier time.
pub fn unix_seconds(time: SystemTime) -> u64 {
    since_epoch(time).as_secs()
}

/// The length of a validity period, or of a stored pause, from `start` to `end`. Zero if `end` is earlier.
#[expect(
    clippy::disallowed_methods,
    reason = "an end is a wall-clock time: all that check it have no other clock, and no monotonic clock outlives a boot"
)]
pub fn until(end: SystemTime, start: SystemTime) -> Duration {
    end.duration_since(start).unwrap_or_default()
}

/// Returns the age at `now` of an object that was written by a server, or by an earlier run on the same machine. `None`
/// if the timestamp is later than `now`, because the age is then unknown.
///
/// If a decision of the controller depends on the age of an object from a server, `now` must also come from a server.
#[expect(
    clippy::disallowed_methods,
    reason = "the times come from servers, or from different runs, and no monotonic clock outlives a boot"
)]
pub fn age(written: SystemTime, now: SystemTime) -> Option<Duration> {
    now.duration_since(written).ok()
}

/// The absolute difference between two times.
pub fn apart(one: SystemTime, other: SystemTime) -> Duration {
    until(one.max(other), one.min(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_time_before_1970_counts_as_1970() {
        assert_eq!(since_epoch(UNIX_EPOCH - SECOND), Duration::ZERO);
        assert_eq!(unix_seconds(UNIX_EPOCH + SECOND * 3 / 2), 1);
    }

    #[test]
    fn a_time_difference_is_never_negative() {
        let (before, after) = (UNIX_EPOCH + SECOND, UNIX_EPOCH + 3 * SECOND);

        assert_eq!(until(after, before), 2 * SECOND);
        assert_eq!(until(before, after), Duration::ZERO);
        assert_eq!(age(before, after), Some(2 * SECOND));
        assert_eq!(age(after, after), Some(Duration::ZERO));
        assert_eq!(age(after, before), None);
        assert_eq!(apart(before, after), 2 * SECOND);
        assert_eq!(apart(after, before), 2 * SECOND);
    }
}
