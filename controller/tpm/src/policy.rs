//! The policy of a cluster on TPMs.

use node_attestation_controller::crd::{LateProviderIds, TpmSettings};

use crate::chain::Authorities;
use crate::pcr_policy::PcrPolicy;
use crate::trusted_ek::AllowList;

/// The policy of a cluster on TPMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpmPolicy {
    pub(crate) authorities: Authorities,
    pub(crate) allowed: AllowList,
    pub(crate) registers: PcrPolicy,
    /// Whether `ConfigMaps` have more of `allowed`.
    pub(crate) has_key_lists: bool,
    /// Whether machines join whose infrastructure has not set their provider IDs yet.
    pub(crate) late_provider_ids: bool,
}

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

impl TpmPolicy {
    /// The policy of these settings. Which platform is asked, and who reads the `ConfigMaps`, is the
    /// caller's to see to.
    ///
    /// # Errors
    ///
    /// They mean nothing.
    pub fn new(settings: &TpmSettings) -> Result<Self, InvalidTpmSettings> {
        let keys = &settings.endorsement_keys;
        Ok(Self {
            authorities: Authorities::new(&keys.require_ca)?,
            allowed: AllowList::new(&keys.allow_list)?,
            registers: PcrPolicy::new(&settings.pcr_policy)?,
            has_key_lists: !keys.config_maps.is_empty(),
            late_provider_ids: settings.late_provider_ids == LateProviderIds::Allow,
        })
    }
}
