//! A token bucket.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A token bucket: a number of tokens for a burst, and then one token per interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The number of tokens at the start, which is also the maximum.
    pub burst: u32,
    /// The time until the next token.
    pub every: Duration,
}

impl Rate {
    /// Takes one token from a bucket that will be full at `full_at`.
    ///
    /// # Errors
    ///
    /// If no token is available, returns the time at which the next token becomes available.
    pub fn take<T>(self, full_at: &mut T, now: T) -> Result<(), T>
    where
        T: Copy + Ord + Add<Duration, Output = T> + Sub<Output = Duration>,
    {
        let missing = (*full_at).max(now) - now;
        let most = self.every * self.burst.saturating_sub(1);
        if let Some(over) = missing.checked_sub(most).filter(|over| !over.is_zero()) {
            return Err(now + over);
        }
        *full_at = now + missing + self.every;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn after_a_burst_the_rate_limit_grants_one_request_each_interval() {
        let now = 1000 * SECOND;
        let mut full_at = now;
        let rate = Rate {
            burst: 3,
            every: SECOND,
        };

        for _ in 0..3 {
            rate.take(&mut full_at, now).unwrap();
        }
        assert_eq!(rate.take(&mut full_at, now), Err(now + SECOND));
        rate.take(&mut full_at, now + SECOND).unwrap();
        assert_eq!(rate.take(&mut full_at, now + SECOND), Err(now + 2 * SECOND));
        assert!(full_at > now + SECOND);
    }

    #[test]
    fn an_idle_rate_limit_refills_to_one_burst() {
        let now = 1000 * SECOND;
        let mut full_at = now;
        let rate = Rate {
            burst: 2,
            every: SECOND,
        };
        rate.take(&mut full_at, now).unwrap();
        let later = now + 100 * SECOND;

        assert!(full_at <= later);
        rate.take(&mut full_at, later).unwrap();
        rate.take(&mut full_at, later).unwrap();
        assert_eq!(rate.take(&mut full_at, later), Err(later + SECOND));
    }
}
