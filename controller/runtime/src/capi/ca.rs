//! The CA of a workload cluster: Secret `<cluster>-ca`, keys `tls.crt` and `tls.key`.

use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::Secret;
use kubelet_attestation::ensure;
use kubelet_attestation::names::Audience;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::signer::{
    CaCertificate, ExternalKey, InvalidCa, SignatureTurns, Signer,
};

/// The maximum length of the certificates, in bytes. During a rotation, a CA has several certificates, each a few
/// kilobytes long.
pub(super) const MAX_CERTIFICATE_LEN: usize = 64 * 1024;

/// The maximum length of the key, in bytes. The longest supported RSA key is 4 kilobytes long.
pub(super) const MAX_KEY_LEN: usize = 16 * 1024;

/// The name of the Secret that contains the CA of the Cluster with this name.
pub(crate) fn ca_secret_name(cluster: &str) -> String {
    format!("{cluster}-ca")
}

/// The CA that a workload cluster's API server accepts for client certificates.
///
/// The Secret can contain several certificates. As in kube-controller-manager, the first certificate is used for
/// signing. Evidence can be bound to any of the certificates.
#[derive(Debug)]
pub struct ClusterCa {
    certificates: Vec<Vec<u8>>,
    signer: Option<Arc<Signer>>,
    turns: Option<Arc<dyn SignatureTurns>>,
    key_digest: KeyDigest,
    not_before: SystemTime,
    not_after: SystemTime,
}

/// The reason why the CA Secret cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaRefused {
    /// The certificate is missing.
    #[error("tls.crt is missing")]
    NoCertificate,
    /// A value is longer than the limit.
    #[error("{field} is longer than {max} bytes")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The limit, in bytes.
        max: usize,
    },
    /// The certificate or the key is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidCa),
}

/// The reason why a CA is not valid at the current time.
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
    /// Returns an error if a certificate is not a CA certificate, or if the key does not match the certificate. A
    /// missing key is not an error: see [`ClusterCa::signer`].
    pub fn from_secret(secret: &Secret) -> Result<Self, CaRefused> {
        Self::read(secret, None)
    }

    /// Like [`from_secret`](Self::from_secret), but each signature waits for one of these turns.
    ///
    /// # Errors
    ///
    /// Like [`from_secret`](Self::from_secret).
    pub fn in_turns(secret: &Secret, turns: Arc<dyn SignatureTurns>) -> Result<Self, CaRefused> {
        Self::read(secret, Some(turns))
    }

    fn read(secret: &Secret, turns: Option<Arc<dyn SignatureTurns>>) -> Result<Self, CaRefused> {
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
            signer: signer.map(|signer| Arc::new(signer.in_turns(turns.clone()))),
            turns,
            key_digest: KeyDigest::of(&certificate.spki),
            not_before: certificate.not_before,
            not_after: certificate.not_after,
        })
    }

    /// If the Secret has no key, adds a signer that uses this key.
    ///
    /// # Errors
    ///
    /// Returns an error if the certificate's key type is not supported for signing.
    pub fn or_signed_by(self, key: Arc<dyn ExternalKey>) -> Result<Self, CaRefused> {
        let (None, Some(der)) = (&self.signer, self.certificates.first()) else {
            return Ok(self);
        };
        let pem = pem::encode(&pem::Pem::new("CERTIFICATE", der.as_slice()));
        let signer = Signer::with_external_key(pem.as_bytes(), key)?;
        Ok(Self {
            signer: Some(Arc::new(signer.in_turns(self.turns.clone()))),
            ..self
        })
    }

    /// The signer. `None` if neither the Secret nor an external signer has the key.
    pub fn signer(&self) -> Option<&Arc<Signer>> {
        self.signer.as_ref()
    }

    /// The certificates as DER. The first certificate is used for signing.
    pub fn certificates(&self) -> &[Vec<u8>] {
        &self.certificates
    }

    /// The audiences that evidence for this cluster can have.
    pub fn audiences(&self) -> impl Iterator<Item = Audience> {
        self.certificates.iter().map(|der| Audience::of_ca(der))
    }

    /// The digest of the CA key. If two clusters have the same digest, a client certificate for one cluster is valid in
    /// the other cluster, regardless of the evidence.
    pub fn key_digest(&self) -> KeyDigest {
        self.key_digest
    }

    /// The expiry time of the signing certificate.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Returns the reason why the CA cannot sign at `now`.
    ///
    /// The result is only for information: a request at that time waits for a valid CA
    /// ([`Deferral::CaNotValid`](node_attestation_core::refusal::Deferral::CaNotValid)).
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

/// A value from the Secret. An empty value counts as missing.
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
