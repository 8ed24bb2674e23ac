//! The CA of a workload cluster: Secret `<cluster>-ca`, keys `tls.crt` and `tls.key`.

use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::Secret;
use kubelet_attestation::ensure;
use kubelet_attestation::names::Audience;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::signer::{CaCertificate, ExternalKey, InvalidCa, Signer};

/// A CA that is being replaced has some certificates, of some kilobytes each.
const MAX_CERTIFICATE_LEN: usize = 64 * 1024;

/// The longest RSA key that signs here has four kilobytes.
const MAX_KEY_LEN: usize = 16 * 1024;

/// The CA that a workload cluster's API server accepts client certificates of.
///
/// The Secret may have more certificates than one: the first signs, as it does for
/// kube-controller-manager, and evidence may be meant for any.
#[derive(Debug)]
pub struct ClusterCa {
    certificates: Vec<Vec<u8>>,
    signer: Option<Arc<Signer>>,
    key_digest: KeyDigest,
    not_before: SystemTime,
    not_after: SystemTime,
}

/// A CA's Secret cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaRefused {
    /// There is no certificate.
    #[error("tls.crt is missing")]
    NoCertificate,
    /// A value is longer than it can be.
    #[error("{field} is longer than {max} bytes")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The most it may have.
        max: usize,
    },
    /// The certificate, or the key.
    #[error(transparent)]
    Invalid(#[from] InvalidCa),
}

/// The reason for which a CA is not valid now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaOutOfTime {
    /// Its certificate has expired.
    #[error("the CA certificate has expired")]
    Expired,
    /// Its certificate is not valid yet.
    #[error("the CA certificate is not valid yet")]
    NotYetValid,
}

impl ClusterCa {
    /// Reads the Secret.
    ///
    /// # Errors
    ///
    /// A certificate that is none of a CA, or a key that is not the certificate's. A key that is
    /// not there is no error: [`ClusterCa::signer`].
    pub fn from_secret(secret: &Secret) -> Result<Self, CaRefused> {
        let pem = value(secret, "tls.crt", MAX_CERTIFICATE_LEN)?.ok_or(CaRefused::NoCertificate)?;
        let blocks = pem::parse_many(pem).map_err(|_| InvalidCa::Certificate)?;
        let first = blocks.first().ok_or(InvalidCa::NotOneCertificate)?;
        let are_certificates = blocks.iter().all(|block| block.tag() == "CERTIFICATE");
        ensure!(are_certificates, InvalidCa::NotOneCertificate.into());
        let signing = pem::encode(first);
        let certificate = CaCertificate::from_pem(signing.as_bytes())?;
        let signer = value(secret, "tls.key", MAX_KEY_LEN)?
            .map(|key| Signer::from_pem(signing.as_bytes(), key))
            .transpose()?;
        Ok(Self {
            certificates: blocks.into_iter().map(pem::Pem::into_contents).collect(),
            signer: signer.map(Arc::new),
            key_digest: KeyDigest::of(&certificate.spki),
            not_before: certificate.not_before,
            not_after: certificate.not_after,
        })
    }

    /// The same; where the Secret has no key, with a signer that has this one.
    ///
    /// # Errors
    ///
    /// A certificate whose key is of a kind that does not sign here.
    pub fn or_signed_by(self, key: Arc<dyn ExternalKey>) -> Result<Self, CaRefused> {
        let (None, Some(der)) = (&self.signer, self.certificates.first()) else {
            return Ok(self);
        };
        let pem = pem::encode(&pem::Pem::new("CERTIFICATE", der.as_slice()));
        let signer = Signer::with_external_key(pem.as_bytes(), key)?;
        Ok(Self {
            signer: Some(Arc::new(signer)),
            ..self
        })
    }

    /// The signer; `None` if the Secret has no key, and no external signer has one.
    pub fn signer(&self) -> Option<&Arc<Signer>> {
        self.signer.as_ref()
    }

    /// DER of the certificates, the one that signs first.
    pub fn certificates(&self) -> &[Vec<u8>] {
        &self.certificates
    }

    /// The audiences of evidence for this cluster.
    pub fn audiences(&self) -> impl Iterator<Item = Audience> {
        self.certificates.iter().map(|der| Audience::of_ca(der))
    }

    /// The digest of the key. Two clusters of which it is the same are one to whoever holds a certificate of
    /// either, whatever their evidence says.
    pub fn key_digest(&self) -> KeyDigest {
        self.key_digest
    }

    /// The end of the certificate that signs.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Why nothing can be signed at `now`. It is told, and decides nothing: a request that comes
    /// then waits for another CA ([`Deferral::CaNotValid`](node_attestation_core::refusal::Deferral::CaNotValid)).
    pub fn out_of_time(&self, now: SystemTime) -> Option<CaOutOfTime> {
        if now > self.not_after {
            Some(CaOutOfTime::Expired)
        } else if now < self.not_before {
            Some(CaOutOfTime::NotYetValid)
        } else {
            None
        }
    }
}

/// A value of the Secret; an empty one is as good as none.
fn value<'a>(
    secret: &'a Secret,
    field: &'static str,
    max: usize,
) -> Result<Option<&'a [u8]>, CaRefused> {
    let value = secret.data.as_ref().and_then(|data| data.get(field));
    let value = value.map(|bytes| bytes.0.as_slice()).unwrap_or_default();
    ensure!(value.len() <= max, CaRefused::TooLong { field, max });
    Ok((!value.is_empty()).then_some(value))
}

#[cfg(test)]
mod tests;
