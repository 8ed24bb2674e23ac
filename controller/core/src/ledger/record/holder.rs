//! The holder of a node name.

use kubelet_attestation::names::{Provider, ProviderId};

use crate::identifiers::KeyDigest;
use crate::ledger::Claim;
use crate::verifier::{Assurance, AttestedIdentity, Identity, TpmBoot};

/// The machine that holds a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHolder {
    /// The provider ID.
    pub provider_id: ProviderId,
    /// The attestation provider that verified the machine. [`Provider::INSECURE`] for a machine without evidence.
    pub attestor: Provider,
    /// The ID of the instance, if its cloud has separate instance IDs.
    pub instance: Option<String>,
    /// The name of the Machine at the time of the claim, for operators. The name also identifies the machine until the
    /// machine has a provider ID.
    pub machine_name: Option<String>,
    /// The endorsement key of the machine's TPM, if the evidence contained one.
    pub endorsement_key: Option<KeyDigest>,
    /// The TPM's start counters and clock at the time of the claim.
    pub boot: Option<TpmBoot>,
}

impl RecordHolder {
    pub(super) fn of(claim: &Claim) -> Self {
        let identity = claim.assurance.identity();
        Self {
            provider_id: identity.provider_id.clone(),
            attestor: match claim.assurance {
                Assurance::None(_) => Provider::INSECURE,
                Assurance::Attested(_) => claim.provider.clone(),
            },
            instance: identity.instance.clone(),
            machine_name: claim.machine_name.clone(),
            endorsement_key: identity.endorsement_key,
            boot: identity.boot,
        }
    }

    /// Whether the machine was attested.
    pub fn is_attested(&self) -> bool {
        self.attestor != Provider::INSECURE
    }

    /// The identity of the machine, and whether it was attested.
    pub fn assurance(&self) -> Assurance {
        let identity = Identity {
            instance: self.instance.clone(),
            endorsement_key: self.endorsement_key,
            boot: self.boot,
            ..Identity::of(self.provider_id.clone())
        };
        if self.is_attested() {
            Assurance::Attested(AttestedIdentity::vouched(identity))
        } else {
            Assurance::None(identity)
        }
    }

    /// Whether this holder's record is relevant to the identity: its machine or TPM is the same.
    pub(in crate::ledger) fn concerns(&self, identity: &Identity) -> bool {
        self.provider_id == identity.provider_id || self.has_tpm_of(identity)
    }

    /// Whether the identity has the same TPM.
    pub(in crate::ledger) fn has_tpm_of(&self, identity: &Identity) -> bool {
        let key = self.endorsement_key;
        key.is_some() && key == identity.endorsement_key
    }

    /// Whether the holder has this identity, and was attested with it when the record was opened.
    pub(in crate::ledger) fn was_proved(&self, attested: &AttestedIdentity) -> bool {
        let identity = attested.identity();
        self.is_attested() && self.provider_id == identity.provider_id && self.is(identity)
    }

    /// Whether the machine's identity is stronger than the record: the record has no evidence, or no TPM.
    pub(in crate::ledger) fn is_weaker_than(&self, identity: &Identity) -> bool {
        let pins = self.endorsement_key.is_none() && identity.endorsement_key.is_some();
        !self.is_attested() || pins
    }

    /// Whether this holder has the identity, given that their provider IDs match. The instance must be the same. If the
    /// holder was attested with a TPM, the TPM must also be the same. Other evidence covers neither the TPM nor the
    /// boot state.
    pub(in crate::ledger) fn is(&self, identity: &Identity) -> bool {
        let instances = self.instance.as_ref().zip(identity.instance.as_ref());
        instances.is_none_or(|(one, other)| one == other)
            && (self.endorsement_key.is_none() || self.has_tpm_of(identity))
    }
}
