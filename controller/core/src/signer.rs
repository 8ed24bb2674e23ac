//! The cluster's CA.

use std::fmt;

/// Signs node certificates with one cluster's CA.
pub struct Signer {}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

/// A CA's certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCa {
    /// Not one PEM certificate.
    #[error("the CA certificate is not one PEM certificate")]
    Certificate,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The CA's key did not sign.
    #[error("the CA's key did not sign")]
    Key,
}

impl Signer {
    /// Signs with this CA, given as PEM: a certificate, and its key as PKCS#8, PKCS#1 or SEC1.
    pub fn from_pem(_certificate: &[u8], _key: &[u8]) -> Result<Self, InvalidCa> {
        Err(InvalidCa::Certificate)
    }
}
