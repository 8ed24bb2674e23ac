//! The cluster's CA.
//!
//! This module encodes certificates field by field, so that the issuer equals the CA's subject byte for byte. A library
//! that stores names in a map drops repeated attributes, so the chain would be invalid for a CA that has repeated
//! attributes.

mod algorithm;
mod ca;
mod certificate;
mod external;
mod key;
mod private_key;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use kubelet_attestation::ensure;

use crate::pace::yield_now;
use crate::refusal::{Deferral, Failure, Refusal};
pub use algorithm::SignatureAlgorithm;
pub use ca::{CaCertificate, OtherCertificate};
use certificate::Unsigned;
pub use certificate::is_other_serving;
pub(crate) use certificate::{CertificateContents, Purpose};
pub use external::{ExternalKey, ExternalKeyError, SigningRequest};
use key::CaKey;

pub use ca::InvalidCa;
#[cfg(any(test, feature = "testing"))]
pub use private_key::testing;
pub use private_key::{InvalidPrivateKey, PrivateKey, PrivateKeyForm};

/// Signs node certificates with one cluster's CA.
///
/// A signer is immutable. When the CA is replaced, the signer is also replaced.
#[derive(derive_more::Debug)]
#[debug("Signer")]
pub struct Signer {
    ca: CaCertificate,
    key: Key,
    /// The limit on concurrent calculations with the CA's keys. `None` if the process uses only this CA.
    turns: Option<Arc<dyn SignatureTurns>>,
}

/// The limit on concurrent calculations with CA keys, which all clusters share. Each calculation waits for its turn.
///
/// A signature with a key in memory needs up to 3 ms of processor time, and a tenant chooses the number of its
/// requests.
#[async_trait::async_trait]
pub trait SignatureTurns: Debug + Send + Sync {
    /// Waits for a turn. The turn ends when the returned value is dropped.
    async fn turn(&self) -> Box<dyn Send>;
}

/// The CA key.
enum Key {
    /// A key in memory.
    Held(CaKey),
    /// A key that another program holds, with its signature algorithm.
    External(Arc<dyn ExternalKey>, SignatureAlgorithm),
}

/// A signed certificate.
pub(crate) struct Signed {
    pub(crate) pem: String,
    pub(crate) serial: String,
    pub(crate) not_after: SystemTime,
}

impl Signer {
    /// Creates a signer for this CA in PEM: one certificate, and its key as PKCS#8, PKCS#1 or SEC1.
    ///
    /// # Errors
    ///
    /// Returns an error if the certificate is not a CA certificate, if the key does not match the certificate, or if
    /// the key type is not supported.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, InvalidCa> {
        let ca = CaCertificate::from_pem(certificate)?;
        let key = Key::Held(CaKey::from_pem(key, &ca)?);
        Ok(Self::of(ca, key))
    }

    /// Creates a signer for this CA in PEM, whose key another program holds.
    ///
    /// # Errors
    ///
    /// Returns an error if the certificate is not a CA certificate, or if its key type is not supported.
    pub fn with_external_key(
        certificate: &[u8],
        key: Arc<dyn ExternalKey>,
    ) -> Result<Self, InvalidCa> {
        let ca = CaCertificate::from_pem(certificate)?;
        let algorithm = ca.algorithm.ok_or(InvalidCa::KeyKind)?;
        let key = Key::External(key, algorithm);
        Ok(Self::of(ca, key))
    }

    /// Creates a signer that signs with this CA's name and a random key. This signer does not require the CA key, and
    /// no cluster accepts its certificates. [Explanations](crate::decide::explain) use this signer.
    ///
    /// # Errors
    ///
    /// Returns an error if the certificate is not a CA certificate, or if the system provides no random bytes.
    pub fn rehearsal(certificate: &[u8]) -> Result<Self, InvalidCa> {
        let ca = CaCertificate::from_pem(certificate)?;
        let key = CaKey::random().map_err(|_| InvalidCa::KeyForm)?;
        let key = Key::Held(key);
        Ok(Self::of(ca, key))
    }

    fn of(ca: CaCertificate, key: Key) -> Self {
        let turns = None;
        Self { ca, key, turns }
    }

    /// Returns the signer with these turns.
    #[must_use]
    pub fn in_turns(self, turns: Option<Arc<dyn SignatureTurns>>) -> Self {
        Self { turns, ..self }
    }

    /// The expiry time of the CA certificate. Certificates from this signer never expire later.
    pub fn not_after(&self) -> SystemTime {
        self.ca.not_after
    }

    /// DER of the CA certificate.
    pub fn ca_der(&self) -> &[u8] {
        &self.ca.der
    }

    /// Whether this controller signs for `kubernetes.io/kubelet-serving` with this CA, instead of kube-controller-manager.
    pub fn signs_kubelet_serving(&self) -> bool {
        match &self.key {
            Key::Held(_) => false,
            Key::External(key, _) => key.signs_kubelet_serving(),
        }
    }

    /// Checks that the CA can sign now: its certificate is valid, and the program that holds the key responds. If the
    /// check fails, all requests wait until the CA is valid or is replaced, or until the program responds.
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

    /// Signs a certificate.
    ///
    /// # Errors
    ///
    /// Defers if the CA certificate has expired or is not valid yet, the system does not provide random bytes, or the
    /// external signer does not respond. Fails if the certificate cannot be encoded or signed.
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
            Key::Held(key) => {
                let signature = self.calculate(|| key.sign(message)).await;
                let failed = |_| Failure::SigningImpossible("cannot sign with the CA key".into());
                signature.map_err(failed)?
            }
            Key::External(key, algorithm) => {
                let signature = external::sign(key, &self.ca, *algorithm, message).await?;
                let is_right = || algorithm.is_signed_by(&self.ca.public_key, message, &signature);
                let is_right = self.calculate(is_right).await;
                ensure!(is_right, Deferral::SignatureInvalid.into());
                signature
            }
        };
        let signed = unsigned.signed(&signature);
        Ok(signed.map_err(Failure::SigningImpossible)?)
    }

    /// Runs a calculation when its turn comes, after the other tasks on this thread.
    async fn calculate<T>(&self, calculation: impl FnOnce() -> T) -> T {
        yield_now().await;
        let _turn = match &self.turns {
            Some(turns) => Some(turns.turn().await),
            None => None,
        };
        calculation()
    }
}

#[cfg(test)]
mod tests;
