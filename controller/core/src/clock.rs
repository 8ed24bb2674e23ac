//! Where time comes from.

use std::time::SystemTime;

/// The wall clock.
///
/// Decisions take the time as an argument; this is for those who hand it to them.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}
