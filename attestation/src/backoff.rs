//! Pauses between the attempts at an operation that fails.

use std::time::Duration;

/// Pauses that double after each failure, from the first to the longest pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause, which limits all pauses.
    pub longest: Duration,
}

impl Backoff {
    /// Returns the pause after `failures` + 1 consecutive failures.
    pub fn after(self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(failures));
        doubled.min(self.longest)
    }

    /// The pause after the next failure, if `pause` followed the previous failure. The result is always within the
    /// limits of this back-off, even if a different back-off computed `pause`.
    pub fn following(self, pause: Duration) -> Duration {
        pause.saturating_mul(2).max(self.first).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        first: Duration::from_secs(5),
        longest: Duration::from_mins(1),
    };

    #[test]
    fn each_failure_doubles_the_pause_up_to_the_longest_one() {
        let after = [0, 1, 2, 3, 4, 31, 32, u32::MAX].map(|failures| BACKOFF.after(failures));
        assert_eq!(
            after.map(|pause| pause.as_secs()),
            [5, 10, 20, 40, 60, 60, 60, 60]
        );

        let mut pause = BACKOFF.first;
        for expected in [10, 20, 40, 60, 60] {
            pause = BACKOFF.following(pause);
            assert_eq!(pause.as_secs(), expected);
        }
    }

    #[test]
    fn a_pause_of_another_backoff_is_limited() {
        for (pause, expected) in [
            (Duration::ZERO, 5),
            (Duration::from_secs(1), 5),
            (Duration::MAX, 60),
        ] {
            assert_eq!(BACKOFF.following(pause).as_secs(), expected);
        }
    }

    #[test]
    fn a_first_pause_of_zero_stays_zero() {
        let none = Backoff {
            first: Duration::ZERO,
            ..BACKOFF
        };

        assert_eq!(none.after(u32::MAX), Duration::ZERO);
        assert_eq!(none.following(Duration::ZERO), Duration::ZERO);
    }
}
