//! CA keys that another program holds.

use std::fmt::Debug;
use std::sync::Arc;

use super::algorithm::SignatureAlgorithm;
use super::ca::CaCertificate;
use crate::refusal::{Deferral, Unavailable};

/// A CA key that another program holds, such as a PKCS #11 token or a KMS.
///
/// The signer verifies each signature with the CA certificate's public key before it issues a certificate. Therefore an
/// implementation can delay certificates, but cannot cause invalid certificates. An implementation enforces its own
/// deadlines.
#[async_trait::async_trait]
pub trait ExternalKey: Debug + Send + Sync {
    /// Checks that the program can sign now. The controller claims a node name only if this check passes.
    async fn check(&self) -> Result<(), ExternalKeyError>;

    /// Whether this controller uses the key for `kubernetes.io/kubelet-serving`, because no other component signs for it.
    fn signs_kubelet_serving(&self) -> bool {
        false
    }

    /// Signs one certificate.
    async fn sign(&self, request: &SigningRequest<'_>) -> Result<Vec<u8>, ExternalKeyError>;
}

/// The inputs to a signature.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SigningRequest<'a> {
    /// DER of the CA certificate.
    pub ca_der: &'a [u8],
    /// The algorithm, which the CA key determines.
    pub algorithm: SignatureAlgorithm,
    /// DER of the `TBSCertificate`.
    pub to_be_signed: &'a [u8],
}

/// The reason why the program that holds the key did not sign.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalKeyError {
    /// The program is unavailable, slow, busy or broken.
    #[error("it is unavailable")]
    Unavailable(#[source] Unavailable),
    /// The program refuses to sign this certificate, or to sign with this key.
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

/// Requests a signature from `key`. The caller must verify the signature with the public key in `ca`.
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
    Ok(key.sign(&request).await?)
}
