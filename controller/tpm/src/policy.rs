//! The policy of a cluster for TPMs.

use node_attestation_core::crd::{LateProviderIds, TpmSettings};

use crate::chain::Authorities;
use crate::invalid_settings::InvalidTpmSettings;
use crate::pcr_policy::PcrPolicy;
use crate::trusted_ek::AllowList;

/// The policy of a cluster for TPMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpmPolicy {
    pub(crate) authorities: Authorities,
    pub(crate) allowed: AllowList,
    pub(crate) registers: PcrPolicy,
    /// Whether `ConfigMaps` contain more entries for `allowed`.
    pub(crate) has_key_lists: bool,
    /// Whether machines can join before their infrastructure sets their provider IDs.
    pub(crate) late_provider_ids: bool,
}

impl TpmPolicy {
    /// Creates the policy from these settings. The caller selects the platform, and the reader of the `ConfigMaps`.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings are invalid.
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
