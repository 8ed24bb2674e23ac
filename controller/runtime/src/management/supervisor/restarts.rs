//! The delay before a cluster is served again after one of its tasks panicked.

use tokio::time::Instant;

use super::RESTART;

/// The panics in the tasks of one cluster.
///
/// Each panic doubles the delay. After a time without panics that is longer than the maximum delay, the next panic
/// starts with the first delay again.
#[derive(Debug)]
pub(super) struct Restarts {
    panics: u32,
    /// The earliest time at which the cluster can be served again.
    rest_until: Instant,
}

impl Restarts {
    /// The state without panics.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            panics: 0,
            rest_until: now,
        }
    }

    /// Whether the cluster cannot be served yet.
    pub(super) fn is_resting(&self, now: Instant) -> bool {
        now < self.rest_until
    }

    /// Records that a task panicked.
    pub(super) fn after_panic(&mut self, now: Instant) {
        if now.saturating_duration_since(self.rest_until) > RESTART.longest {
            self.panics = 0;
        }
        self.rest_until = now + RESTART.after(self.panics);
        self.panics = self.panics.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The delay after a panic that occurs at `now`.
    fn wait(restarts: &mut Restarts, now: Instant) -> Duration {
        restarts.after_panic(now);
        assert!(restarts.is_resting(now));
        restarts.rest_until - now
    }

    #[tokio::test(start_paused = true)]
    async fn each_panic_doubles_the_wait_up_to_the_maximum() {
        let mut now = Instant::now();
        let mut restarts = Restarts::new(now);
        assert!(!restarts.is_resting(now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = wait(&mut restarts, now);
            now += wait;
            assert!(!restarts.is_resting(now));
            waits.push(wait.as_secs());
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_time_without_panics_resets_the_wait() {
        let second = Duration::from_secs(1);
        let mut now = Instant::now();
        let mut restarts = Restarts::new(now);
        now += wait(&mut restarts, now);
        now += wait(&mut restarts, now);

        // A wait as long as the maximum delay is not sufficient.
        now += RESTART.longest;
        let third = wait(&mut restarts, now);
        assert_eq!(third, RESTART.first * 4);

        now += third + RESTART.longest + second;
        assert_eq!(wait(&mut restarts, now), RESTART.first);
    }
}
