//! The cluster's CA.
//!
//! Certificates are encoded here, field by field, so that the issuer is the CA's subject byte for
//! byte: a library that keeps names in a map drops repeated attributes, and the chain of such a CA
//! does not verify.

mod algorithm;
mod ca;
mod certificate;
mod external;
mod key;

use std::sync::Arc;
use std::time::SystemTime;

use crate::refusal::{Deferral, Failure, Refusal};
pub use algorithm::SignatureAlgorithm;
pub use ca::CaCertificate;
use certificate::Unsigned;
pub(crate) use certificate::{CertificateContents, Purpose};
pub use external::{ExternalKey, ExternalKeyError, SigningRequest};
use key::CaKey;

pub use ca::InvalidCa;

/// Signs node certificates with one cluster's CA.
///
/// It does not change; where the CA is replaced, so is its signer.
#[derive(derive_more::Debug)]
#[debug("Signer")]
pub struct Signer {
    ca: CaCertificate,
    key: Key,
}

/// The CA's key.
enum Key {
    /// In memory.
    Held(CaKey),
    /// Of another program, with the algorithm of its signatures.
    External(Arc<dyn ExternalKey>, SignatureAlgorithm),
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
        let key = Key::Held(CaKey::from_pem(key, &ca)?);
        Ok(Self { ca, key })
    }

    /// Signs with this CA, whose key another program holds. The certificate is PEM.
    ///
    /// # Errors
    ///
    /// A certificate that is no CA's, or whose key is of another kind.
    pub fn with_external_key(
        certificate: &[u8],
        key: Arc<dyn ExternalKey>,
    ) -> Result<Self, InvalidCa> {
        let ca = CaCertificate::from_pem(certificate)?;
        let algorithm = ca.algorithm.ok_or(InvalidCa::KeyKind)?;
        let key = Key::External(key, algorithm);
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
        let key = Key::Held(key);
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

    /// Checks that the CA can sign now: it is valid, and the program that holds its key answers. Where it cannot, its
    /// replacement, or that of the program, cures every request that waits.
    pub(crate) async fn check(&self, now: SystemTime) -> Result<(), Deferral> {
        self.is_valid(now)?;
        match &self.key {
            Key::Held(_) => Ok(()),
            Key::External(key, _) => Ok(key.check().await?),
        }
    }

    fn is_valid(&self, now: SystemTime) -> Result<(), Deferral> {
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
    /// A CA that is not valid now, a system without random bytes, or a key of another program that does not sign, is a
    /// retry.
    pub(crate) async fn sign(
        &self,
        contents: &CertificateContents<'_>,
        now: SystemTime,
    ) -> Result<Signed, Refusal> {
        self.is_valid(now)?;
        let serial = certificate::serial().map_err(|_| Deferral::NoEntropy)?;
        let algorithm = match &self.key {
            Key::Held(key) => key.algorithm(),
            Key::External(_, algorithm) => *algorithm,
        };
        let unsigned = Unsigned::new(&self.ca, algorithm, contents, serial, now);
        let unsigned = unsigned.map_err(Failure::SigningImpossible)?;
        let message = &unsigned.to_be_signed;
        let signature = match &self.key {
            Key::Held(key) => key
                .sign(message)
                .map_err(|_| Failure::SigningImpossible("the CA's key did not sign".into()))?,
            Key::External(key, algorithm) => {
                external::sign(key, &self.ca, *algorithm, message).await?
            }
        };
        let signed = unsigned.signed(&signature);
        Ok(signed.map_err(Failure::SigningImpossible)?)
    }
}

#[cfg(test)]
mod tests;
