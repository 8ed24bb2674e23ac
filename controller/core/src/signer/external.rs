//! CA keys that another program holds.

use std::fmt::Debug;
use std::sync::Arc;

use kubelet_attestation::ensure;

use super::algorithm::SignatureAlgorithm;
use super::ca::CaCertificate;
use crate::refusal::{Deferral, Unavailable};

/// A CA's key that another program holds: a PKCS #11 token, a KMS.
///
/// The signer verifies each signature with the CA certificate's key before it issues anything, so an implementation can
/// delay certificates, and cannot make a wrong one. It brings its own deadlines.
#[async_trait::async_trait]
pub trait ExternalKey: Debug + Send + Sync {
    /// Checks that the program can sign now. A node name is given away only after this.
    async fn check(&self) -> Result<(), ExternalKeyError>;

    /// Signs one certificate.
    async fn sign(&self, request: &SigningRequest<'_>) -> Result<Vec<u8>, ExternalKeyError>;
}

/// The contents of a signature.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SigningRequest<'a> {
    /// DER of the CA's certificate.
    pub ca_der: &'a [u8],
    /// The algorithm, which follows from the CA's key.
    pub algorithm: SignatureAlgorithm,
    /// DER of the `TBSCertificate`.
    pub to_be_signed: &'a [u8],
}

/// The program that holds the key did not sign.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalKeyError {
    /// It is away, slow, busy or broken.
    #[error("it is unavailable")]
    Unavailable(#[source] Unavailable),
    /// It does not want to sign this certificate, or with this key.
    #[error("it refuses")]
    Refused(#[source] Unavailable),
}

impl From<ExternalKeyError> for Deferral {
    fn from(error: ExternalKeyError) -> Self {
        match error {
            ExternalKeyError::Unavailable(why) => Self::SignerUnavailable(why),
            ExternalKeyError::Refused(why) => Self::SignerRefused(why),
        }
    }
}

/// Requests a signature of `key`, and verifies it with the key of `ca`.
pub(super) async fn sign(
    key: &Arc<dyn ExternalKey>,
    ca: &CaCertificate,
    algorithm: SignatureAlgorithm,
    to_be_signed: &[u8],
) -> Result<Vec<u8>, Deferral> {
    let request = SigningRequest {
        ca_der: &ca.der,
        algorithm,
        to_be_signed,
    };
    let signature = key.sign(&request).await?;
    let is_right = algorithm.is_signed_by(&ca.public_key, to_be_signed, &signature);
    ensure!(is_right, Deferral::SignatureInvalid);
    Ok(signature)
}
