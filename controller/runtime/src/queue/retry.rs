//! The waits between attempts of a request.

use std::time::Duration;

use kubelet_attestation::backoff::Backoff;

/// The waits before a request is retried. A machine that is being created appears within seconds. After the longest
/// wait, a node reads the answer in its next run.
pub(super) const RETRY: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_mins(1),
};
