//! The source of the time in the simulators.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The machine's time.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where time comes from in the simulators"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// The time since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "1970 is not a clock reading: this is the time as a number"
)]
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap()
}
