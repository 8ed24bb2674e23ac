//! How often something may be done.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket: so many at once, and then one an interval.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    burst: u32,
    interval: Duration,
    /// When the bucket will be full, if nothing is taken until then.
    full_at: Instant,
}

impl Bucket {
    pub(super) fn new(burst: u32, interval: Duration, now: Instant) -> Self {
        Self {
            burst,
            interval,
            full_at: now,
        }
    }

    /// Takes a token, or says when there will be one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let full_at = self.full_at.max(now) + self.interval;
        let ready = full_at.checked_sub(self.interval * self.burst);
        if let Some(ready) = ready.filter(|ready| *ready > now) {
            return Err(ready);
        }
        self.full_at = full_at;
        Ok(())
    }

    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_and_then_one_an_interval() {
        let now = Instant::now();
        let mut bucket = Bucket::new(3, SECOND, now);

        for _ in 0..3 {
            bucket.take(now).unwrap();
        }
        assert_eq!(bucket.take(now), Err(now + SECOND));
        bucket.take(now + SECOND).unwrap();
        assert_eq!(bucket.take(now + SECOND), Err(now + 2 * SECOND));
        assert!(!bucket.is_full(now + SECOND));
    }

    #[test]
    fn a_rest_fills_it_to_a_burst_and_no_more() {
        let now = Instant::now();
        let mut bucket = Bucket::new(2, SECOND, now);
        bucket.take(now).unwrap();
        let later = now + 100 * SECOND;

        assert!(bucket.is_full(later));
        bucket.take(later).unwrap();
        bucket.take(later).unwrap();
        assert_eq!(bucket.take(later), Err(later + SECOND));
    }
}
