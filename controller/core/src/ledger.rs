//! The ledger: one record for each node name, with the holder of the name. A record is called a node identity in the
//! API. Records implement trust on first use.

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
pub use record::{
    MAX_CLOCK_DIFFERENCE, Opening, PresentTime, Record, RecordHolder, RequestRef, SeenBoot,
    whole_seconds,
};
pub use record_ledger::RecordLedger;
pub use records::{
    AllRecords, LastIssued, MemoryRecords, Records, Rehearsal, Stored, Version, WriteError,
};
pub use revocations::{
    MAX_RELEASED, MAX_RELEASED_LEN, RecordRevocations, RevocationDecisions, Revocations,
};

/// The holder of a node name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The UID of the record, with the current generation.
    pub uid: CertificateUid,
    /// The identity of the machine, and whether it was attested.
    pub assurance: Assurance,
    /// The attestation provider that verified the machine.
    pub attestor: Provider,
}

/// A machine's claim to a node name, with the key that opens a generation of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The claimed name.
    pub node_name: NodeName,
    /// The credential of the requester.
    pub claimant: Claimant,
    /// The identity of the machine, and whether it was attested.
    pub assurance: Assurance,
    /// The attestation provider of the identity.
    pub provider: Provider,
    /// The name of the Machine, for operators.
    pub machine_name: Option<String>,
    /// The key.
    pub key: KeyDigest,
    /// The request, for operators.
    pub request: RequestRef,
    /// The time at which the API server created the request.
    pub asked: SystemTime,
    /// The latest expiry of the certificate for this claim.
    pub not_after: SystemTime,
}

impl Claim {
    /// Whether the claim comes from the Machine that holds the record, if neither the claim nor the record has
    /// evidence. The provider IDs in the claim and in the record can differ, because the machine itself claims its
    /// provider ID.
    pub(crate) fn is_of_machine(&self, holder: &RecordHolder) -> bool {
        let machine = self.machine_name.as_ref();
        matches!(self.assurance, Assurance::None(_))
            && self.claimant == Claimant::Token
            && !holder.is_attested()
            && machine.is_some()
            && machine == holder.machine_name.as_ref()
    }
}

/// The credential that the claimant presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimant {
    /// A bootstrap token.
    Token,
    /// The certificate of the Node with this name, without a record UID. Another signer issued the certificate, or
    /// certificates in this cluster do not contain a UID.
    Node,
    /// The certificate with this UID, which identifies the record of this node name.
    Renewal(CertificateUid),
}

/// A node's request for the next certificate of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The node name.
    pub node_name: NodeName,
    /// The identity of the machine, from fresh evidence.
    pub identity: AttestedIdentity,
    /// The UID in the certificate of the requester.
    pub uid: CertificateUid,
    /// The time at which the API server created the request.
    pub asked: SystemTime,
    /// The latest expiry of the certificate for this renewal.
    pub not_after: SystemTime,
    /// The attestation provider of the identity.
    pub provider: Provider,
    /// The name of the Machine, for operators.
    pub machine_name: Option<String>,
    /// The key.
    pub key: KeyDigest,
    /// The request, for operators.
    pub request: RequestRef,
}

impl Renewal {
    /// The claim with which this renewal opens a generation.
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
    /// The UID for the certificate.
    pub uid: CertificateUid,
    /// The latest expiry of the certificate.
    pub not_after: SystemTime,
    /// The reason for the grant.
    pub reason: GrantReason,
}

#[cfg(test)]
mod tests;
