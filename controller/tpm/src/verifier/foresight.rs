//! The prediction for a machine that has not sent evidence yet.

use std::time::SystemTime;

use kubelet_attestation::names::ProviderId;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::inventory::Machine;
use node_attestation_core::refusal::{Deferral, Refusal};
use node_attestation_core::verifier::platform::KeyKind;
use node_attestation_core::verifier::{Foresight, Identity};

use super::TpmVerifier;
use crate::denial::TpmDenial;
use crate::key_lists::{are_well_formed, listed_in};

impl TpmVerifier {
    /// Returns the identity of an existing machine that has not sent evidence yet, with its endorsement key from all
    /// sources.
    pub(super) async fn foreseen(
        &self,
        machine: &Machine,
        provider_id: &ProviderId,
        now: SystemTime,
    ) -> Result<Foresight, Refusal> {
        let mut foresight = Foresight::of(Identity::of(provider_id.clone()));
        let mut keys: Vec<_> = self.local_keys(machine, provider_id).collect();
        let lists = self.lists().await.map_err(Deferral::VerifierUnavailable);
        if let Some(lists) = foresight.and(lists.map_err(Refusal::from))? {
            keys.extend(listed_in(&lists, provider_id).map(|key| (key, true)));
            if !keys.iter().any(|(_, is_source)| *is_source) {
                foresight.and(are_well_formed(&lists).map_err(Refusal::from))?;
            }
        }
        // The machine will present a single endorsement key, which cannot match two different keys.
        if let Some((trusted, _)) = keys.first()
            && let Some((presented, _)) = keys.iter().find(|(key, _)| key != trusted)
        {
            let (trusted, presented) = (*trusted, *presented);
            let machine = machine.name.clone();
            return Err(TpmDenial::EndorsementKeyOfAnotherMachine {
                machine,
                trusted,
                presented,
            }
            .into());
        }
        foresight.identity.endorsement_key = keys.first().map(|(key, _)| *key);
        if foresight.unknown.is_none() && !keys.iter().any(|(_, is_source)| *is_source) {
            let key = self.key_of_platform(machine, provider_id).await;
            foresight.identity.endorsement_key = foresight.and(key)?;
        }
        if foresight
            .and(self.platform.check(provider_id, now).await)?
            .is_some()
            && !machine.unnamed
        {
            let name = self.platform.node_name(provider_id).await;
            let name = name.map_err(|source| Refusal::from(Deferral::VerifierUnavailable(source)));
            foresight.identity.node_name = foresight.and(name)?.flatten();
        }
        Ok(foresight)
    }

    /// Returns the endorsement key that the platform reports for a machine that has not sent evidence. A TPM has one
    /// key of each type. The type that the machine will use is unknown, so this function returns the first reported
    /// key.
    async fn key_of_platform(
        &self,
        machine: &Machine,
        provider_id: &ProviderId,
    ) -> Result<KeyDigest, Refusal> {
        for kind in [KeyKind::P256, KeyKind::P384, KeyKind::Rsa2048] {
            let key = self.platform.endorsement_key(provider_id, kind).await;
            if let Some(key) = key.map_err(Deferral::VerifierUnavailable)? {
                return Ok(key);
            }
        }
        Err(TpmDenial::EndorsementKeyUnknown(machine.name.clone()).into())
    }
}
