//! The holder of a node's name: the record of trust on first use.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, Provider};

pub use crate::crd::{Revoked, RevokedGenerations, Tombstone, TombstoneReason};
use crate::identifiers::{CertificateUid, KeyDigest};
use crate::verifier::{Assurance, AttestedIdentity};

mod absences;
mod garbage_collect;
mod grant_reason;
mod node_removal;
mod policy;
mod record;
mod record_ledger;
mod records;
mod revocations;
mod rules;

pub use absences::{Absences, MISSING_MACHINE_TIMEOUT};
pub use garbage_collect::{FailedUpdates, SweepAction, SweepReport, Swept};
pub use grant_reason::{GrantReason, ReenrolReason};
pub use policy::{Adoption, LedgerPolicy};
pub use record::{Opened, Record, RecordHolder, RequestRef, SeenBoot, whole_seconds};
pub use record_ledger::RecordLedger;
pub use records::{LastIssued, MemoryRecords, Records, Rehearsal, Stored, Version, WriteError};
pub use revocations::{RevocationDecisions, Revocations};

/// The holder of a node's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The record and its present generation.
    pub uid: CertificateUid,
    /// The machine, and how well it was founded that this is it.
    pub assurance: Assurance,
    /// The attestor of its evidence.
    pub attestor: Provider,
}

/// A machine's claim to a node name, with the key that opens a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The name.
    pub node_name: NodeName,
    /// With what it is claimed.
    pub claimant: Claimant,
    /// The machine, and how well it is founded that this is it.
    pub assurance: Assurance,
    /// The provider that its identity is of.
    pub provider: Provider,
    /// The Machine's name; for people.
    pub machine_name: Option<String>,
    /// The key.
    pub key: KeyDigest,
    /// The request; for people.
    pub request: RequestRef,
    /// The time at which the API server received the request.
    pub asked: SystemTime,
    /// The certificate that follows will not be valid for longer.
    pub not_after: SystemTime,
}

impl Claim {
    /// Whether the claim is by the Machine that the holder is, where neither proved anything: all that
    /// may differ is the provider ID that it says.
    pub(crate) fn is_of_machine(&self, holder: &RecordHolder) -> bool {
        let machine = self.machine_name.as_ref();
        matches!(self.assurance, Assurance::None(_))
            && self.claimant == Claimant::Token
            && !holder.is_attested()
            && machine.is_some()
            && machine == holder.machine_name.as_ref()
    }
}

/// With what a name is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimant {
    /// A bootstrap token.
    Token,
    /// The certificate of the Node of that name, which names no record: of another signer, or of a
    /// cluster whose certificates carry no UID.
    Node,
    /// The certificate of this UID, of the name's own record.
    Renewal(CertificateUid),
}

/// A node's wish for the next certificate of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The name.
    pub node_name: NodeName,
    /// The machine, proved anew.
    pub identity: AttestedIdentity,
    /// The UID in the certificate that the request was made with.
    pub uid: CertificateUid,
    /// The time at which the API server received the request.
    pub asked: SystemTime,
    /// The certificate that follows will not be valid for longer.
    pub not_after: SystemTime,
    /// The provider that the identity is of.
    pub provider: Provider,
    /// The Machine's name; for people.
    pub machine_name: Option<String>,
    /// The key.
    pub key: KeyDigest,
    /// The request; for people.
    pub request: RequestRef,
}

impl Renewal {
    /// The claim by which a renewal opens a generation.
    pub(crate) fn claim(&self) -> Claim {
        Claim {
            node_name: self.node_name.clone(),
            claimant: Claimant::Renewal(self.uid),
            assurance: Assurance::Attested(self.identity.clone()),
            provider: self.provider.clone(),
            machine_name: self.machine_name.clone(),
            key: self.key,
            request: self.request.clone(),
            asked: self.asked,
            not_after: self.not_after,
        }
    }
}

/// The permission of a record to issue a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The UID that the certificate is to carry.
    pub uid: CertificateUid,
    /// The latest end of its validity.
    pub not_after: SystemTime,
    /// The reason of the grant.
    pub opening: GrantReason,
}

#[cfg(test)]
mod tests;
