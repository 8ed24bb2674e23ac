//! The longest validity of certificates that is granted.

use std::time::{Duration, SystemTime};

/// The default for a machine that proved its identity, in seconds: seven days.
pub(crate) const ATTESTED_SECONDS: u32 = 7 * 24 * 60 * 60;

/// The default for a machine without evidence, in seconds: a year.
pub(crate) const INSECURE_SECONDS: u32 = 365 * 24 * 60 * 60;

/// The maximum for a machine that proved its identity, in seconds: 30 days.
pub(crate) const MAX_ATTESTED_SECONDS: u32 = 30 * 24 * 60 * 60;

/// The maximum for a machine without evidence, in seconds: 366 days.
pub(crate) const MAX_SECONDS: u32 = 366 * 24 * 60 * 60;

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
    fn default() -> Self {
        Self {
            attested: Duration::from_secs(ATTESTED_SECONDS.into()),
            insecure: Duration::from_secs(INSECURE_SECONDS.into()),
        }
    }
}
