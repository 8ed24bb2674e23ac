//! The clocks. Decisions take the time as an argument, and their callers read it here.

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

/// The period plus a random addition of up to 10 %, which separates tasks that start together.
pub fn jittered(period: Duration) -> Duration {
    let mut random = [0];
    // Without random bytes, there is no jitter.
    let _ = aws_lc_rs::rand::fill(&mut random);
    period + period / 10 * u32::from(random[0]) / 256
}

/// A monotonic clock: the time since its first use.
pub fn elapsed() -> Duration {
    START.elapsed()
}
