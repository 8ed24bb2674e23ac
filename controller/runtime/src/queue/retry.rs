//! The delays between attempts to decide on a request.

use std::time::Duration;

use kubelet_attestation::backoff::Backoff;

/// The delays before a request is retried. A machine that is being created appears within seconds. If a request waits
/// for the maximum delay, the plugin reads the answer in its next run.
pub(super) const RETRY: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_mins(1),
};
