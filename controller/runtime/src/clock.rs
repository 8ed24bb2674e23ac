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

/// A monotonic clock: the time since it was first asked.
pub(crate) fn elapsed() -> Duration {
    START.elapsed()
}
