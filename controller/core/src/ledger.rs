//! Who holds a node's name: the record of trust on first use.

use std::fmt::{self, Debug};
use std::time::SystemTime;

use futures::future::BoxFuture;
use kubelet_attestation::names::NodeName;

use crate::refusal::Refusal;
use crate::verifier::{Assurance, AttestedIdentity};

mod memory;

pub use memory::MemoryLedger;

/// Keeps one record for each node name of one cluster.
///
/// Both steps can be repeated: after a crash the same request finds its own record. A record
/// remembers the latest time at which a certificate of its generation can still be valid, before
/// that certificate exists.
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
}

/// Who holds a node's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "every ledger writes one out")]
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
    /// The machine, and how well it is founded that this is it.
    pub assurance: Assurance,
    /// The key.
    pub key: KeyDigest,
    /// The certificate that follows will not be valid for longer.
    pub not_after: SystemTime,
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
    /// The certificate that follows will not be valid for longer.
    pub not_after: SystemTime,
}

/// What a record allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "every ledger writes one out")]
pub struct Grant {
    /// The UID that the certificate is to carry.
    pub uid: CertificateUid,
    /// The latest end of its validity.
    pub not_after: SystemTime,
}

/// SHA-256 of the DER of a `SubjectPublicKeyInfo`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of this key.
    pub fn of(spki_der: &[u8]) -> Self {
        let mut digest = [0; 32];
        digest.copy_from_slice(
            aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, spki_der).as_ref(),
        );
        Self(digest)
    }

    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = data_encoding::HEXLOWER.encode(&self.0);
        write!(f, "KeyDigest({hex})")
    }
}

/// What makes records distinct: 16 random bytes, made with the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordUid([u8; 16]);

impl RecordUid {
    /// The UID of these random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self(random)
    }
}

impl fmt::Display for RecordUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl Debug for RecordUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordUid({self})")
    }
}

/// The UID that a certificate carries, `<record>.<generation>`; the API server makes it the user's
/// UID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CertificateUid {
    /// The record.
    pub record: RecordUid,
    /// Which holder of the record's name, from 1.
    pub generation: u64,
}

/// Text is not a certificate's UID in its only form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a certificate's UID is 32 lower-case hexadecimal digits, '.' and a generation")]
pub struct InvalidCertificateUid;

impl CertificateUid {
    /// Reads a UID; every UID has one form.
    pub fn parse(text: &str) -> Result<Self, InvalidCertificateUid> {
        let (record, generation) = text.split_once('.').ok_or(InvalidCertificateUid)?;
        let record = data_encoding::HEXLOWER
            .decode(record.as_bytes())
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(InvalidCertificateUid)?;
        let uid = Self {
            record: RecordUid(record),
            generation: generation.parse().map_err(|_| InvalidCertificateUid)?,
        };
        // `parse` also reads signs and leading zeros.
        if uid.generation > 0 && uid.to_string() == text {
            Ok(uid)
        } else {
            Err(InvalidCertificateUid)
        }
    }

    /// The UID of the record's next generation.
    #[must_use]
    pub fn next(self) -> Self {
        Self {
            generation: self.generation.saturating_add(1),
            ..self
        }
    }
}

impl fmt::Display for CertificateUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.record, self.generation)
    }
}

#[cfg(test)]
mod tests;
