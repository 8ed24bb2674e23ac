//! The clocks. Decisions take the time as an argument; these are for those who hand it to them.

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

/// The period and up to a tenth more, by chance, so that what began together drifts apart.
pub fn jittered(period: Duration) -> Duration {
    let mut random = [0];
    // Without random bytes it does not drift.
    let _ = aws_lc_rs::rand::fill(&mut random);
    period + period / 10 * u32::from(random[0]) / 256
}

/// A monotonic clock: the time since it was first asked.
pub(crate) fn elapsed() -> Duration {
    START.elapsed()
}
