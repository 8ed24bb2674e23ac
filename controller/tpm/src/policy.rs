//! A cluster's policy for TPMs.

use std::sync::Arc;

use node_attestation_core::crd::{LateProviderIds, TpmSettings};
use node_attestation_core::unshared::Unshared;

use crate::chain::Authorities;
use crate::invalid_settings::InvalidTpmSettings;
use crate::pcr_policy::PcrPolicy;
use crate::trusted_ek::AllowList;

/// A cluster's policy for TPMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpmPolicy {
    pub(crate) authorities: Authorities,
    pub(crate) allowed: AllowList,
    pub(crate) registers: PcrPolicy,
    /// Whether `ConfigMaps` contain more entries for `allowed`.
    pub(crate) has_key_lists: bool,
    /// Whether machines can join before their infrastructure provider sets their provider IDs.
    pub(crate) late_provider_ids: bool,
}

impl TpmPolicy {
    /// Creates the policy from these settings. The caller provides the platform, and the reader for the `ConfigMaps`.
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

/// The policy of one cluster, together with the settings from which it was created.
///
/// Invalid settings are also kept, so that the certificates in the settings are parsed only after a change.
// Not shared: only one cluster uses this lock.
#[derive(Debug, Default)]
pub struct KeptPolicy(Unshared<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    settings: TpmSettings,
    policy: Result<Arc<TpmPolicy>, InvalidTpmSettings>,
}

impl KeptPolicy {
    /// Returns the policy for these settings.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings are invalid.
    pub fn of(&self, settings: &TpmSettings) -> Result<Arc<TpmPolicy>, InvalidTpmSettings> {
        self.parsed_with(settings, TpmPolicy::new)
    }

    fn parsed_with(
        &self,
        settings: &TpmSettings,
        parse: impl FnOnce(&TpmSettings) -> Result<TpmPolicy, InvalidTpmSettings>,
    ) -> Result<Arc<TpmPolicy>, InvalidTpmSettings> {
        let mut last = self.0.lock();
        if let Some(kept) = &*last
            && kept.settings == *settings
        {
            return kept.policy.clone();
        }
        let policy = parse(settings).map(Arc::new);
        *last = Some(Kept {
            settings: settings.clone(),
            policy: policy.clone(),
        });
        policy
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn unchanged_tpm_settings_are_parsed_once_even_if_they_are_refused() {
        let kept = KeptPolicy::default();
        let count = Cell::new(0);
        let parses = |settings: &TpmSettings, is_valid: bool| {
            let before = count.get();
            let policy = kept.parsed_with(settings, |settings| {
                count.set(count.get() + 1);
                TpmPolicy::new(settings)
            });
            assert_eq!(policy.is_ok(), is_valid, "{policy:?}");
            count.get() - before
        };
        let valid = TpmSettings::default();
        let mut refused = valid.clone();
        refused.endorsement_keys.require_ca = vec!["text".to_owned()];

        for (settings, is_valid) in [(&valid, true), (&refused, false), (&valid, true)] {
            let counts = [(); 3].map(|()| parses(settings, is_valid));

            assert_eq!(counts, [1, 0, 0]);
        }
    }
}
