//! The clocks. Decisions get the time as an argument, and their callers read it here.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// The period plus a random addition of up to 10 %, so that tasks that start together run at different times.
pub fn jittered(period: Duration) -> Duration {
    let mut random = [0];
    // If no random bytes are available, there is no jitter.
    let _ = aws_lc_rs::rand::fill(&mut random);
    period + period / 10 * u32::from(random[0]) / 256
}

/// The time since this function was first called, from a monotonic clock.
pub fn elapsed() -> Duration {
    START.elapsed()
}
