//! A client certificate with its key.

mod issued;

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;
use x509_parser::nom::Parser as _;
use x509_parser::prelude::{X509Certificate, X509CertificateParser};
use zeroize::Zeroizing;

use crate::failure::Invalid;
use crate::key::PrivateKey;
use crate::kube::kubeconfig::Login;
use crate::rotation::{Fraction, Validity};
use crate::secret::Secret;

/// The last second in RFC 3339. A certificate "without a well-defined expiration" expires at this time (RFC 5280
/// section 4.1.2.5).
const LAST_SECOND: i64 = 253_402_300_799;

/// The beginning of a PEM block.
const BEGIN: &str = "-----BEGIN ";

/// The beginning of the last line of a PEM block.
const END: &str = "-----END ";

/// The label of a certificate.
const CERTIFICATE: &str = "CERTIFICATE";

/// The end of each label of a private key.
const PRIVATE_KEY: &str = "PRIVATE KEY";

const BEGIN_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\n";
const END_CERTIFICATE: &str = "-----END CERTIFICATE-----\n";

/// The length of a line of PEM (RFC 7468 section 2), including the line break.
const LINE_LEN: usize = 65;

/// A certificate chain and the key of its leaf.
///
/// There are two constructors. [`Credential::from_store`] reads the store. [`Credential::from_issued`] takes a chain
/// from a signer and makes more checks, because the chain is new.
#[derive(Debug)]
pub struct Credential {
    certificate_pem: String,
    key: PrivateKey,
    leaf: Leaf,
}

/// A credential to print, and the time at which client-go runs the plugin again.
#[derive(Debug)]
pub(crate) struct ExecResult {
    /// The credential.
    pub credential: Credential,
    /// The time at which client-go must run the plugin again.
    pub expiration: SystemTime,
}

/// The facts about the leaf certificate that the flow uses.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// The validity period of the certificate.
    pub validity: Validity,
    /// A fraction, derived from the serial number, that spreads renewals over time.
    pub jitter: Fraction,
    /// The node in its common name, if the certificate has exactly one common name, and the common name is the user
    /// name of a node.
    pub node_name: Option<NodeName>,
    /// The bytes of the serial number.
    pub serial: Vec<u8>,
}

const UNREADABLE: &str = "cannot parse the certificate";
const NO_CERTIFICATE: &str = "the file does not contain a certificate";

impl Credential {
    /// Parses the output of [`Credential::to_pem`]. Ignores text and unknown blocks, which a later release might have
    /// written.
    ///
    /// # Guarantees
    ///
    /// The public half of the key matches the leaf. The validity period and the node name are not checked.
    pub fn from_store(text: &str) -> Result<Self, Invalid> {
        ensure!(!text.trim().is_empty(), Invalid::new("the file is empty"));
        let blocks = || {
            text.match_indices(BEGIN)
                .filter_map(|(start, _)| block(text, start))
        };
        let key_pem = blocks().find(|block| label(block).ends_with(PRIVATE_KEY));
        let certificate_pem: String = blocks().filter(|it| label(it) == CERTIFICATE).collect();
        let der = first_certificate(&certificate_pem);
        let der = der.ok_or_else(|| Invalid::new(NO_CERTIFICATE))?;
        let key = PrivateKey::from_pem(Secret::new(key_pem.unwrap_or_default().to_owned()))
            .map_err(|error| error.within("the file does not contain a private key"))?;
        let certificate = parse(&der).map_err(|error| error.within(UNREADABLE))?;
        if !has_key(&certificate, &key) {
            return Err(Invalid::new(
                "the private key does not match the certificate",
            ));
        }
        Ok(Self {
            leaf: Leaf::of(&certificate).map_err(|error| error.within(UNREADABLE))?,
            certificate_pem,
            key,
        })
    }

    /// Returns this credential if the private half of its key matches the public half. The check is slow, because it
    /// computes a point on the curve.
    pub(crate) fn checked(self) -> Result<Self, Invalid> {
        Ok(Self {
            key: self
                .key
                .checked()
                .map_err(|error| error.within("the private key is damaged"))?,
            ..self
        })
    }

    /// The content of the file: the chain, then the key. Both are in one file, and therefore always match.
    pub fn to_pem(&self) -> Zeroizing<String> {
        // In one allocation: a growing buffer would leave copies of the key in memory.
        Zeroizing::new([self.certificate_pem.as_str(), self.key_pem().expose()].concat())
    }

    /// The chain in PEM, leaf first. The bytes do not change until a new certificate is issued.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key in PEM.
    pub fn key_pem(&self) -> &Secret<String> {
        self.key.pem()
    }

    /// The login with this credential.
    pub(crate) fn login(&self) -> Login {
        Login::ClientCertificate {
            chain_pem: self.certificate_pem.clone(),
            key_pem: Secret::new(self.key_pem().expose().clone()),
        }
    }

    /// The public key, as in the bit string of a `SubjectPublicKeyInfo`.
    pub fn public_bits(&self) -> &[u8] {
        self.key.public_bits()
    }

    /// The facts about the leaf certificate.
    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    /// The validity period of the leaf.
    pub fn validity(&self) -> Validity {
        self.leaf.validity
    }

    /// The time at which the renewal is due.
    pub fn renew_at(&self) -> SystemTime {
        self.leaf.validity.renew_at(self.leaf.jitter)
    }
}

impl Leaf {
    /// The facts about a parsed certificate.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Result<Self, Invalid> {
        let mut common_names = certificate.subject().iter_common_name();
        let node_name = match (common_names.next(), common_names.next()) {
            (Some(name), None) => name.as_str().ok().and_then(NodeName::from_user_name),
            _ => None,
        };
        let serial = certificate.raw_serial().to_vec();
        Ok(Self {
            validity: validity(certificate)?,
            jitter: Fraction::from_bytes(&serial),
            node_name,
            serial,
        })
    }
}

/// The PEM block at `start`, with its line end; `None` if the block is not terminated.
fn block(text: &str, start: usize) -> Option<&str> {
    let text = text.get(start..)?;
    let end = text.find(END)?;
    let len = text
        .get(end..)?
        .find('\n')
        .map_or(text.len(), |line_end| end + line_end + 1);
    text.get(..len)
}

/// The label of a PEM block.
fn label(block: &str) -> &str {
    let label = block.strip_prefix(BEGIN).unwrap_or_default();
    label.split("-----").next().unwrap_or_default()
}

/// The DER of the first block of a chain, with lines of equal length as [`Credential::to_pem`] writes them.
///
/// General PEM decoders decode in constant time, as if for a key. That would take more time than parsing the
/// certificate.
fn first_certificate(pem: &str) -> Option<Vec<u8>> {
    let base64 = pem.strip_prefix(BEGIN_CERTIFICATE)?;
    // Base64 does not contain dashes, so the first dash is the end of the base64.
    let (base64, end) = base64.split_at_checked(base64.find('-')?)?;
    if !end.starts_with(END_CERTIFICATE) {
        return None;
    }
    let mut der = Vec::with_capacity(base64.len());
    for line in base64.as_bytes().chunks(LINE_LEN) {
        let line = line.strip_suffix(b"\n")?;
        STANDARD.decode_vec(line, &mut der).ok()?;
    }
    Some(der)
}

/// Parses a certificate without its extensions. [`Credential::from_issued`] parses the extensions that it checks.
pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, Invalid> {
    let mut parser = X509CertificateParser::new().with_deep_parse_extensions(false);
    match parser.parse(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(Invalid::new("it is not an X.509 certificate in DER")),
    }
}

/// Whether the public half of the key matches the certificate.
pub(crate) fn has_key(certificate: &X509Certificate<'_>, key: &PrivateKey) -> bool {
    certificate.public_key().subject_public_key.data.as_ref() == key.public_bits()
}

fn validity(certificate: &X509Certificate<'_>) -> Result<Validity, Invalid> {
    let time = |seconds: i64| {
        u64::try_from(seconds)
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
            .map_err(|_| Invalid::new("it contains dates before 1970"))
    };
    let validity = certificate.validity();
    Ok(Validity {
        not_before: time(validity.not_before.timestamp())?,
        // RFC 5280 section 4.1.2.5: the period includes NotAfter itself.
        not_after: time(
            validity
                .not_after
                .timestamp()
                .saturating_add(1)
                .min(LAST_SECOND),
        )?,
    })
}

#[cfg(test)]
mod tests;
