//! The longest validity of certificates that is granted.

use std::time::{Duration, SystemTime};

/// The longest validity that is granted; a longer one that is asked for is cut to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// For a machine that proved what it is.
    pub attested: Duration,
    /// For one that cannot: it is never renewed.
    pub insecure: Duration,
}

impl Lifetimes {
    /// The longer of them.
    pub fn longest(&self) -> Duration {
        self.attested.max(self.insecure)
    }

    /// The same, but none beyond `end`.
    pub(crate) fn until(self, end: SystemTime, now: SystemTime) -> Self {
        let left = end.duration_since(now).unwrap_or_default();
        Self {
            attested: self.attested.min(left),
            insecure: self.insecure.min(left),
        }
    }
}

impl Default for Lifetimes {
    /// Seven days, and for an unattested machine one year.
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self {
            attested: 7 * DAY,
            insecure: 365 * DAY,
        }
    }
}
