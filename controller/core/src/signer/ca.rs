//! The CA certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::ensure;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer as _;
use x509_parser::time::ASN1Time;

use super::algorithm::SignatureAlgorithm;
use super::private_key::InvalidPrivateKey;

/// The maximum length of the CA's subject, in bytes of DER. Each certificate contains a copy, and requests keep their
/// certificates until the API server has stored them. Subjects of common CAs are shorter than 256 bytes.
pub(super) const MAX_SUBJECT_LEN: usize = 4096;

/// The maximum length of the CA's key identifier, in bytes, which each certificate also contains. RFC 5280 and RFC 7093
/// use a hash of the key, and the longest hash in use is SHA-512.
const MAX_KEY_ID_LEN: usize = 64;

/// A CA certificate or key that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCa {
    /// The text is not exactly one certificate.
    #[error("the CA certificate is not exactly one PEM certificate")]
    NotOneCertificate,
    /// The certificate is malformed.
    #[error("the CA certificate is malformed")]
    Certificate,
    /// The certificate is not allowed to sign other certificates.
    #[error(
        "the certificate is not a CA certificate: it lacks CA:TRUE or the key usage to sign certificates"
    )]
    NotACa,
    /// The subject is too long.
    #[error(
        "the CA certificate's subject is longer than {MAX_SUBJECT_LEN} bytes: use a CA with a shorter subject"
    )]
    SubjectTooLong,
    /// The subject key identifier is too long.
    #[error(
        "the CA certificate's key identifier is longer than {MAX_KEY_ID_LEN} bytes: use a CA with a shorter key \
         identifier"
    )]
    KeyIdTooLong,
    /// The format of the key is not supported.
    #[error("the CA key is not exactly one unencrypted PEM block in PKCS#8, PKCS#1 or SEC1 form")]
    KeyForm,
    /// The key type is not supported.
    #[error(
        "the CA key is neither an RSA key with 2048 to 4096 bits nor an ECDSA key on P-256, P-384 or P-521"
    )]
    KeyKind,
    /// The key is rejected.
    #[error("the CA key is not accepted")]
    Key(#[from] InvalidPrivateKey),
    /// The key does not match the certificate.
    #[error("the CA key does not match the CA certificate")]
    KeyMismatch,
}

/// The fields of the CA certificate that the signer uses.
#[derive(Debug)]
pub struct CaCertificate {
    pub(crate) der: Vec<u8>,
    /// DER of the `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
    /// DER of the subject, byte for byte as in the certificate.
    pub(super) subject: Vec<u8>,
    /// The subject key identifier, if the certificate contains one.
    pub(super) key_id: Option<Vec<u8>>,
    /// The public key in the encoding for its type: the DER of an RSA key, or a point on a curve.
    pub(super) public_key: Vec<u8>,
    /// The signature algorithm of the CA. `None` if its key type is not supported.
    pub(super) algorithm: Option<SignatureAlgorithm>,
    /// The start of the validity period.
    pub not_before: SystemTime,
    /// The end of the validity period.
    pub not_after: SystemTime,
}

impl CaCertificate {
    /// Parses one PEM block.
    pub fn from_pem(text: &[u8]) -> Result<Self, InvalidCa> {
        let blocks = pem::parse_many(text).map_err(|_| InvalidCa::NotOneCertificate)?;
        let [block] = blocks.as_slice() else {
            return Err(InvalidCa::NotOneCertificate);
        };
        ensure!(block.tag() == "CERTIFICATE", InvalidCa::NotOneCertificate);
        let der = block.contents();
        let (rest, certificate) =
            X509Certificate::from_der(der).map_err(|_| InvalidCa::Certificate)?;
        ensure!(rest.is_empty(), InvalidCa::Certificate);
        let may_sign = certificate
            .key_usage()
            .map_err(|_| InvalidCa::Certificate)?
            .is_none_or(|usage| usage.value.key_cert_sign());
        ensure!(certificate.is_ca() && may_sign, InvalidCa::NotACa);
        let key_id = certificate.iter_extensions().find_map(|extension| {
            let ParsedExtension::SubjectKeyIdentifier(id) = extension.parsed_extension() else {
                return None;
            };
            Some(id.0.to_vec())
        });
        let has_long_id = key_id.as_ref().is_some_and(|id| id.len() > MAX_KEY_ID_LEN);
        ensure!(!has_long_id, InvalidCa::KeyIdTooLong);
        let subject = certificate.subject().as_raw();
        ensure!(subject.len() <= MAX_SUBJECT_LEN, InvalidCa::SubjectTooLong);
        let validity = certificate.validity();
        Ok(Self {
            der: der.to_vec(),
            spki: certificate.public_key().raw.to_vec(),
            subject: subject.to_vec(),
            key_id,
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
            algorithm: SignatureAlgorithm::of(certificate.public_key()),
            not_before: system_time(validity.not_before)?,
            not_after: system_time(validity.not_after)?,
        })
    }
}

/// A certificate from another signer. Nothing in it is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherCertificate {
    /// The common name.
    pub name: String,
    /// The start of its validity.
    pub begin: SystemTime,
    /// The expiry time.
    pub end: SystemTime,
    /// The first bytes of the serial number. A conforming serial number has at most 20 bytes.
    pub serial: Vec<u8>,
}

impl OtherCertificate {
    const MAX_SERIAL_LEN: usize = 20;

    /// The first certificate in a PEM text. `None` if it is malformed.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let block = pem::parse(text).ok()?;
        let (_, certificate) = X509Certificate::from_der(block.contents()).ok()?;
        let name = certificate.subject().iter_common_name().next()?;
        Some(Self {
            name: name.as_str().ok()?.to_owned(),
            begin: system_time(certificate.validity().not_before).ok()?,
            end: system_time(certificate.validity().not_after).ok()?,
            serial: {
                let bytes = certificate.raw_serial().iter();
                bytes.copied().take(Self::MAX_SERIAL_LEN).collect()
            },
        })
    }
}

fn system_time(time: ASN1Time) -> Result<SystemTime, InvalidCa> {
    let seconds = u64::try_from(time.timestamp()).map_err(|_| InvalidCa::Certificate)?;
    Ok(UNIX_EPOCH + Duration::from_secs(seconds))
}
