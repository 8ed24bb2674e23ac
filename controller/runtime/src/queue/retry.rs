//! The waits between attempts of a request.

use std::time::Duration;

/// The first wait before a request is retried. A machine that is being created appears within seconds.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The longest wait before a retry. After this time, a node reads the answer in its next run.
pub(super) const LAST_RETRY: Duration = Duration::from_mins(1);

/// The wait after an attempt with `attempts` earlier ones. It doubles each time.
pub(super) fn wait_after(attempts: u32) -> Duration {
    let wait = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(attempts));
    wait.min(LAST_RETRY)
}
