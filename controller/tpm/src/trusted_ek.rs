//! Which endorsement key a machine has, by the word of those who gave it to the machine.
//!
//! Nothing of a request takes part: the machine is the one that the inventory found.

use std::collections::BTreeMap;

use kubelet_attestation::names::ProviderId;
use node_attestation_controller::crd::AllowedEndorsementKey;
use node_attestation_controller::inventory::Machine;
use node_attestation_controller::ledger::KeyDigest;

use crate::policy::InvalidTpmSettings;

/// Machines and their endorsement keys, as an operator listed them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllowList(BTreeMap<String, KeyDigest>);

impl AllowList {
    /// The list of these settings.
    ///
    /// # Errors
    ///
    /// [`InvalidTpmSettings::EndorsementKey`]: a digest is none, or a machine or a key stands there
    /// twice.
    pub(crate) fn new(listed: &[AllowedEndorsementKey]) -> Result<Self, InvalidTpmSettings> {
        let mut by_machine = BTreeMap::new();
        for AllowedEndorsementKey { machine, ek_sha256 } in listed {
            let invalid = || InvalidTpmSettings::EndorsementKey {
                machine: machine.clone(),
            };
            let key = KeyDigest::parse(ek_sha256).map_err(|_| invalid())?;
            let is_another_s = by_machine.values().any(|other| *other == key);
            if is_another_s || by_machine.insert(machine.clone(), key).is_some() {
                return Err(invalid());
            }
        }
        Ok(Self(by_machine))
    }

    fn of(&self, machine: &Machine) -> Option<KeyDigest> {
        self.0.get(&machine.name).copied()
    }

    /// Every key that is known of the machine without asking anybody: they must all be the one that
    /// it presents.
    pub(crate) fn known<'a>(
        &'a self,
        machine: &'a Machine,
        provider_id: &ProviderId,
    ) -> impl Iterator<Item = KeyDigest> + use<'a> {
        [of_provider_id(provider_id), self.of(machine)]
            .into_iter()
            .flatten()
    }
}

/// What a machine is called by that has no name but its TPM's.
const SCHEME: &str = "tpm://";

/// The endorsement key that the provider ID `tpm://<digest>` names.
fn of_provider_id(provider_id: &ProviderId) -> Option<KeyDigest> {
    let digest = provider_id.as_str().strip_prefix(SCHEME)?;
    KeyDigest::parse(digest).ok()
}
