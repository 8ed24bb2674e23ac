//! Differences between wall-clock times, and times in messages.

use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;

pub use kubelet_attestation::time::{age, apart, since_epoch, unix_seconds, until};

/// Formats the time for a message: RFC 3339 in whole seconds.
pub fn text(time: SystemTime) -> String {
    let time = Timestamp::try_from(time);
    time.map_or_else(
        |_| "an unknown time".to_owned(),
        |time| format!("{time:.0}"),
    )
}
