//! The holder of a name.

use kubelet_attestation::names::{Provider, ProviderId};

use crate::identifiers::KeyDigest;
use crate::ledger::Claim;
use crate::verifier::{Assurance, AttestedIdentity, Identity, TpmBoot};

/// The machine that holds a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHolder {
    /// Its provider ID.
    pub provider_id: ProviderId,
    /// The attestor of its evidence; [`Provider::INSECURE`] if it proved nothing.
    pub attestor: Provider,
    /// The instance, where its cloud has names of its own for them.
    pub instance: Option<String>,
    /// The Machine at the time of the claim: for people, and to know it by while it has no provider
    /// ID.
    pub machine_name: Option<String>,
    /// The endorsement key of its TPM, where that proved it.
    pub endorsement_key: Option<KeyDigest>,
    /// The boot of that TPM at the time of the claim.
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

    /// Whether it proved what it is.
    pub fn is_attested(&self) -> bool {
        self.attestor != Provider::INSECURE
    }

    /// The machine, and how well it was founded that this is it.
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

    /// Whether a record of this machine matters to the identity: it is the machine's, or its TPM's.
    pub(in crate::ledger) fn concerns(&self, identity: &Identity) -> bool {
        self.provider_id == identity.provider_id || self.has_tpm_of(identity)
    }

    /// Whether the identity has the same TPM.
    pub(in crate::ledger) fn has_tpm_of(&self, identity: &Identity) -> bool {
        let key = self.endorsement_key;
        key.is_some() && key == identity.endorsement_key
    }

    /// Whether it is this identity, and proved so when the record was opened.
    pub(in crate::ledger) fn was_proved(&self, attested: &AttestedIdentity) -> bool {
        let identity = attested.identity();
        self.is_attested() && self.provider_id == identity.provider_id && self.is(identity)
    }

    /// Whether the identity of this machine proves more of it than the record has: anything, or a TPM.
    pub(in crate::ledger) fn is_weaker_than(&self, identity: &Identity) -> bool {
        let pins = self.endorsement_key.is_none() && identity.endorsement_key.is_some();
        !self.is_attested() || pins
    }

    /// Whether an identity of this machine's provider ID is this machine's: it is of no other
    /// instance, and by the TPM by which the machine proved itself, if it did so by one. Whoever
    /// proves the machine in another way says nothing of its TPM and of how it booted.
    pub(in crate::ledger) fn is(&self, identity: &Identity) -> bool {
        let instances = self.instance.as_ref().zip(identity.instance.as_ref());
        instances.is_none_or(|(one, other)| one == other)
            && (self.endorsement_key.is_none() || self.has_tpm_of(identity))
    }
}
