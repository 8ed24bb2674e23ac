//! Whether attestation is enforced in a cluster.

use std::sync::Arc;

use crate::unshared::Unshared;

/// Whether attestation is enforced in a cluster. By default, attestation is enforced. All clones share the value. The
/// lock is not shared between clusters.
///
/// While attestation is not enforced, the controller does not affect nodes without a node identity: it ignores their
/// requests to the built-in signers of Kubernetes.
#[derive(Debug, Clone)]
pub struct Enforcement(Arc<Unshared<EnforcementState>>);

/// The state of enforcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnforcementState {
    /// Unknown after a start, because a previous process could have enforced attestation. Requests that depend on it
    /// wait.
    Unknown,
    /// Attestation is not enforced.
    Off,
    /// Attestation is enforced.
    On,
}

impl Default for Enforcement {
    fn default() -> Self {
        Self::new(EnforcementState::On)
    }
}

impl Enforcement {
    /// Creates the value.
    pub fn new(state: EnforcementState) -> Self {
        Self(Arc::new(Unshared::new(state)))
    }

    /// The state.
    pub fn state(&self) -> EnforcementState {
        *self.0.lock()
    }

    /// Whether attestation is known to be enforced.
    pub fn is_on(&self) -> bool {
        self.state() == EnforcementState::On
    }

    /// Sets the value for the next and all later requests.
    pub fn set(&self, is_on: bool) {
        *self.0.lock() = if is_on {
            EnforcementState::On
        } else {
            EnforcementState::Off
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_enforcement_counts_as_off_until_it_is_set() {
        let enforcement = Enforcement::new(EnforcementState::Unknown);
        assert!(!enforcement.is_on());
        let clone = enforcement.clone();
        for (is_on, state) in [(false, EnforcementState::Off), (true, EnforcementState::On)] {
            clone.set(is_on);
            assert_eq!((enforcement.is_on(), enforcement.state()), (is_on, state));
        }
    }
}
