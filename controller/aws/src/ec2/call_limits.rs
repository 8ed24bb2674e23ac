//! Limits on EC2 calls.

use std::time::Duration;

use node_attestation_core::rate_limit::Rate;

/// Limits on the calls to one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    /// The rate of calls with the same credentials in one region.
    pub rate: Rate,
    /// The time for which a description is remembered.
    pub remembered: Duration,
    /// The deadline for getting the credentials.
    pub credentials: Duration,
    /// The deadline for one call, including the client's own attempts.
    pub call: Duration,
    /// The maximum wait of a request after its credentials are available.
    pub wait: Duration,
    /// The pause after the first failure. Each subsequent failure doubles the pause.
    pub pause: Duration,
    /// The maximum pause.
    pub longest_pause: Duration,
}
