//! The cluster's CA.
//!
//! Certificates are encoded here, field by field, so that the issuer is the CA's subject byte for
//! byte: a library that keeps names in a map drops repeated attributes, and the chain of such a CA
//! does not verify.

mod ca;
mod certificate;
mod key;

use std::time::SystemTime;

use crate::refusal::{Deferral, Failure, Refusal};
pub use ca::CaCertificate;
pub(crate) use certificate::{CertificateContents, Purpose};
use key::CaKey;

pub use ca::InvalidCa;

/// Signs node certificates with one cluster's CA.
///
/// It does not change; where the CA is replaced, so is its signer.
#[derive(derive_more::Debug)]
#[debug("Signer")]
pub struct Signer {
    ca: CaCertificate,
    key: CaKey,
}

/// A signed certificate.
pub(crate) struct Signed {
    pub(crate) pem: String,
    pub(crate) serial: String,
    pub(crate) not_after: SystemTime,
}

impl Signer {
    /// Signs with this CA, given as PEM: one certificate, and its key as PKCS#8, PKCS#1 or SEC1.
    ///
    /// # Errors
    ///
    /// A certificate that is no CA's, a key of another kind, or one that is not the certificate's.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, InvalidCa> {
        let ca = CaCertificate::from_pem(certificate)?;
        let key = CaKey::from_pem(key, &ca)?;
        Ok(Self { ca, key })
    }

    /// Signs as this CA would, with a random key: nobody accepts what it signs, and the CA's key is not needed. For
    /// [explanations](crate::decide::explain).
    ///
    /// # Errors
    ///
    /// A certificate that is no CA's, or a system without random bytes.
    pub fn rehearsal(certificate: &[u8]) -> Result<Self, InvalidCa> {
        let ca = CaCertificate::from_pem(certificate)?;
        let key = CaKey::random().map_err(|_| InvalidCa::KeyForm)?;
        Ok(Self { ca, key })
    }

    /// The end of the CA's certificate; no certificate that it signs outlives it.
    pub fn not_after(&self) -> SystemTime {
        self.ca.not_after
    }

    /// DER of the CA's certificate.
    pub fn ca_der(&self) -> &[u8] {
        &self.ca.der
    }

    /// Checks that the CA is valid now. Where it is not, replacing it cures every request that
    /// waits.
    pub(crate) fn is_valid(&self, now: SystemTime) -> Result<(), Deferral> {
        if now < self.ca.not_before || now > self.ca.not_after {
            Err(Deferral::CaNotValid)
        } else {
            Ok(())
        }
    }

    /// Makes a certificate.
    ///
    /// # Errors
    ///
    /// A CA that is not valid now, or a system without random bytes, is a retry.
    pub(crate) fn sign(
        &self,
        contents: &CertificateContents<'_>,
        now: SystemTime,
    ) -> Result<Signed, Refusal> {
        self.is_valid(now)?;
        let serial = certificate::serial().map_err(|_| Deferral::NoEntropy)?;
        let signed = certificate::signed(&self.ca, &self.key, contents, &serial, now);
        Ok(signed.map_err(Failure::SigningImpossible)?)
    }
}

#[cfg(test)]
mod tests;
