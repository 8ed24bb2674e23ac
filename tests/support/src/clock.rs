//! The source of the simulators' time.

use std::time::SystemTime;

/// The machine's time.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where time comes from in the simulators"
)]
pub fn now() -> SystemTime {
    SystemTime::now()
}
