//! Limits of the calls to EC2.

use std::time::Duration;

use node_attestation_core::rate_limit::Rate;

/// Limits of the calls of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    /// The rate of calls with the same credentials in one region.
    pub rate: Rate,
    /// The lifetime of a description in memory.
    pub remembered: Duration,
    /// The deadline for credentials.
    pub credentials: Duration,
    /// The deadline for one call, including the client's own attempts.
    pub call: Duration,
    /// The longest wait of a request after it has credentials.
    pub wait: Duration,
    /// The pause after a failure. Each further failure doubles the pause.
    pub pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}
