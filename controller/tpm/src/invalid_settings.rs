//! Errors of the settings.

/// Settings that mean nothing. The API server's schema refuses all but the contents of
/// certificates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTpmSettings {
    /// A required authority.
    #[error("requireCA[{index}]: {detail}")]
    Authority {
        /// The index.
        index: usize,
        /// The rule.
        detail: &'static str,
    },
    /// An entry of the list of machines and their endorsement keys.
    #[error("allowList[{index}]: {detail}")]
    EndorsementKey {
        /// The index.
        index: usize,
        /// The rule.
        detail: &'static str,
    },
    /// A state that names no register, or one that no PC has, or no digest.
    #[error("pcrPolicy.allowed[{index}] is not registers from 0 to 23 with their digests")]
    AllowedState {
        /// The index.
        index: usize,
    },
    /// A state that says nothing of the boot: any program could bring it about.
    #[error(
        "pcrPolicy.allowed[{index}] names no register that software cannot reset (all but 16 and 23)"
    )]
    StateOfSoftware {
        /// The index.
        index: usize,
    },
    /// A policy that would refuse every machine.
    #[error("pcrPolicy allows no state")]
    NoAllowedState,
}
