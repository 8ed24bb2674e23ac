//! The holder of a node's name: the record of trust on first use.

use std::fmt::Debug;
use std::time::SystemTime;

use futures::future::BoxFuture;
use kubelet_attestation::names::{NodeName, Provider};

use crate::identifiers::{CertificateUid, KeyDigest};
use crate::refusal::Refusal;
use crate::verifier::{Assurance, AttestedIdentity};

mod absences;
mod garbage_collect;
mod grant_reason;
#[cfg(test)]
mod model;
mod policy;
mod record;
mod record_ledger;
mod records;
mod rules;

pub use absences::{Absences, MISSING_MACHINE_TIMEOUT};
pub use garbage_collect::{SweepAction, SweepReport};
pub use grant_reason::{GrantReason, ReenrolReason};
pub use policy::{Adoption, Certificates, LedgerPolicy, NameReuse, Reenrolment, StaleNodes};
pub use record::{
    Opened, Record, RecordHolder, RequestRef, Revoked, RevokedGenerations, SeenBoot, Tombstone,
    TombstoneReason,
};
pub use record_ledger::RecordLedger;
pub use records::{LastIssued, MemoryRecords, Records, Stored, Version, WriteError};

/// Keeps one record for each node name of one cluster.
///
/// Every step can be repeated: after a crash the same request finds its own record. A record
/// remembers the latest end of the certificate that opens its generation before that certificate
/// exists.
pub trait Ledger: Debug + Send + Sync {
    /// Claims the name for a machine that joins, or finds the claim that is its own already.
    ///
    /// A repeated claim of a machine that proved nothing is granted no more than the first one was:
    /// otherwise filing the same key again would be the renewal that such a machine cannot have.
    ///
    /// # Errors
    ///
    /// Another machine's living record denies; this machine's own, with another key, is a retry.
    fn claim<'a>(
        &'a self,
        claim: &'a Claim,
        now: SystemTime,
    ) -> BoxFuture<'a, Result<Grant, Refusal>>;

    /// Finds the record whose certificate asks to be followed by another.
    ///
    /// # Errors
    ///
    /// A certificate of no record, of a former generation, or of another identity denies.
    fn renew<'a>(
        &'a self,
        renewal: &'a Renewal,
        now: SystemTime,
    ) -> BoxFuture<'a, Result<Grant, Refusal>>;

    /// Reads who holds the name, for a request that was made with a certificate of `uid`; nothing
    /// is written. `None` where the cluster's certificates carry no UID, so that the name decides.
    ///
    /// # Errors
    ///
    /// No record, another record, a former generation, or one that may have no certificate any more
    /// denies.
    fn holder<'a>(
        &'a self,
        node_name: &'a NodeName,
        uid: Option<CertificateUid>,
        now: SystemTime,
    ) -> BoxFuture<'a, Result<Holder, Refusal>>;

    /// Hears of a certificate that was published. Best effort: nothing rests on it.
    fn issued(&self, _node_name: &NodeName, _certificate: LastIssued) {}
}

/// The holder of a node's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The record and its present generation.
    pub uid: CertificateUid,
    /// The machine, and how well it was founded that this is it.
    pub assurance: Assurance,
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
    /// When the API server got it.
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
    /// When the API server got the request.
    pub asked: SystemTime,
    /// The certificate that follows will not be valid for longer.
    pub not_after: SystemTime,
}

/// What a record allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The UID that the certificate is to carry.
    pub uid: CertificateUid,
    /// The latest end of its validity.
    pub not_after: SystemTime,
    /// How it came to be granted.
    pub opening: GrantReason,
}
