//! The encoding of node certificates (RFC 5280 section 4).

use std::error::Error;
use std::time::SystemTime;

use aws_lc_rs::error::Unspecified;
use kubelet_attestation::contract::CERTIFICATE_BACKDATING;
use kubelet_attestation::csr::oid;
use kubelet_attestation::names::{NODES_GROUP, NodeName, ProviderId};
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::certificate::Rfc5280;
use x509_cert::der::asn1::{
    Any, BitString, Ia5String, ObjectIdentifier, OctetString, Utf8StringRef,
};
use x509_cert::der::{self, Encode, Tag};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName,
};
use x509_cert::name::{RdnSequence, RelativeDistinguishedName};
use x509_cert::serial_number::SerialNumber;
use x509_cert::time::{Time, Validity};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::Signed;
use super::algorithm::SignatureAlgorithm;
use super::ca::CaCertificate;
use crate::identifiers::{CertificateUid, ServingName};

/// `version [0] EXPLICIT INTEGER`, v3.
const V3: [u8; 5] = [0xa0, 0x03, 0x02, 0x01, 0x02];

/// `extensions [3] EXPLICIT`.
const EXTENSIONS_TAG: Tag = Tag::ContextSpecific {
    constructed: true,
    number: der::TagNumber(3),
};

/// Authority key identifier (RFC 5280 section 4.2.1.1).
const AUTHORITY_KEY_IDENTIFIER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.35");

/// TLS client authentication (RFC 5280 section 4.2.1.12).
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// TLS server authentication (RFC 5280 section 4.2.1.12).
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");

/// The length of a serial number: 128 random bits, because serial numbers must be unpredictable. RFC 5280 permits 20
/// octets.
const SERIAL_LEN: usize = 16;

/// The contents of one certificate. All fields except the key are verified. Only the last links in the chain of types
/// in [`request`](crate::request) create this type, which tests/tests/layering checks.
pub(crate) struct CertificateContents<'a> {
    pub(crate) node_name: &'a NodeName,
    pub(crate) spki: &'a [u8],
    pub(crate) not_after: SystemTime,
    pub(crate) purpose: Purpose<'a>,
}

pub(crate) enum Purpose<'a> {
    Client {
        uid: CertificateUid,
        provider_id: &'a ProviderId,
    },
    /// A serving certificate contains no UID, because it does not authenticate a user.
    Serving(&'a [ServingName]),
}

/// A certificate without its signature.
pub(super) struct Unsigned {
    /// DER of the `TBSCertificate`.
    pub(super) to_be_signed: Vec<u8>,
    /// DER of the signature algorithm.
    algorithm: Vec<u8>,
    serial: [u8; SERIAL_LEN],
    not_after: SystemTime,
}

impl Unsigned {
    /// Encodes the certificate. The key comes from the request, and all other fields come from verified data.
    pub(super) fn new(
        ca: &CaCertificate,
        algorithm: SignatureAlgorithm,
        contents: &CertificateContents<'_>,
        serial: [u8; SERIAL_LEN],
        now: SystemTime,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let not_after = contents.not_after.min(ca.not_after);
        let not_before = Time::try_from(now - CERTIFICATE_BACKDATING)?;
        let validity: Validity<Rfc5280> = Validity::new(not_before, Time::try_from(not_after)?);
        let algorithm = algorithm.identifier().to_der()?;
        let extensions = Any::new(EXTENSIONS_TAG, extensions(ca, contents)?.to_der()?)?;
        let to_be_signed = sequence(&[
            &V3,
            &SerialNumber::<Rfc5280>::new(&serial)?.to_der()?,
            &algorithm,
            &ca.subject,
            &validity.to_der()?,
            &subject(contents)?.to_der()?,
            contents.spki,
            &extensions.to_der()?,
        ])?;
        Ok(Self {
            to_be_signed,
            algorithm,
            serial,
            not_after,
        })
    }

    /// Encodes the certificate with its signature.
    pub(super) fn signed(self, signature: &[u8]) -> Result<Signed, Box<dyn Error + Send + Sync>> {
        let signature = BitString::from_bytes(signature)?.to_der()?;
        let certificate = sequence(&[&self.to_be_signed, &self.algorithm, &signature])?;
        let block = pem::Pem::new("CERTIFICATE", certificate);
        let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        Ok(Signed {
            pem: pem::encode_config(&block, config),
            serial: data_encoding::HEXLOWER.encode(&self.serial),
            not_after: self.not_after,
        })
    }
}

/// Whether a serving certificate in PEM is from another signer: it cannot be parsed, or it does not begin with the
/// extensions of this controller, in their order. kube-controller-manager writes them in a different order.
///
/// A signer that imitates this order is not detected.
pub fn is_other_serving(certificate: &[u8]) -> bool {
    const OWN: [ObjectIdentifier; 4] = [
        oid::BASIC_CONSTRAINTS,
        oid::KEY_USAGE,
        oid::EXTENDED_KEY_USAGE,
        oid::SUBJECT_ALT_NAME,
    ];
    let Ok(block) = pem::parse(certificate) else {
        return true;
    };
    let Ok((rest, certificate)) = X509Certificate::from_der(block.contents()) else {
        return true;
    };
    let extensions = certificate.extensions().iter();
    let found = extensions.map(|one| one.oid.as_bytes()).take(OWN.len());
    !rest.is_empty() || found.ne(OWN.iter().map(ObjectIdentifier::as_bytes))
}

/// Returns `O=system:nodes, CN=system:node:<name>` and, for a client certificate, the UID that the API server copies
/// into the user info.
fn subject(contents: &CertificateContents<'_>) -> der::Result<RdnSequence> {
    let uid = match &contents.purpose {
        Purpose::Client { uid, .. } => Some(uid.to_string()),
        Purpose::Serving(_) => None,
    };
    let attributes = [
        (oid::ORGANIZATION, Some(NODES_GROUP.to_owned())),
        (oid::COMMON_NAME, Some(contents.node_name.user_name())),
        (oid::KUBERNETES_USER_UID, uid),
    ];
    let mut subject = RdnSequence::default();
    for (oid, text) in attributes {
        let Some(text) = text else { continue };
        let mut part = RelativeDistinguishedName::default();
        part.insert(AttributeTypeAndValue {
            oid,
            value: Any::from(Utf8StringRef::new(&text)?),
        })?;
        subject.push(part);
    }
    Ok(subject)
}

fn extensions(
    ca: &CaCertificate,
    contents: &CertificateContents<'_>,
) -> der::Result<Vec<Extension>> {
    let (usage, own) = match &contents.purpose {
        Purpose::Client { provider_id, .. } => {
            let provider_id = Utf8StringRef::new(provider_id.as_str())?;
            (
                CLIENT_AUTH,
                extension(oid::PROVIDER_ID, false, &provider_id)?,
            )
        }
        Purpose::Serving(names) => {
            let names = alternative_names(names)?;
            (
                SERVER_AUTH,
                extension(oid::SUBJECT_ALT_NAME, false, &names)?,
            )
        }
    };
    let constraints = BasicConstraints {
        ca: false,
        path_len_constraint: None,
    };
    let mut extensions = vec![
        extension(oid::BASIC_CONSTRAINTS, true, &constraints)?,
        extension(
            oid::KEY_USAGE,
            true,
            &KeyUsage(KeyUsages::DigitalSignature.into()),
        )?,
        extension(
            oid::EXTENDED_KEY_USAGE,
            false,
            &ExtendedKeyUsage(vec![usage]),
        )?,
        own,
    ];
    if let Some(key_id) = &ca.key_id {
        let authority = AuthorityKeyIdentifier {
            key_identifier: Some(OctetString::new(key_id.as_slice())?),
            ..AuthorityKeyIdentifier::default()
        };
        extensions.push(extension(AUTHORITY_KEY_IDENTIFIER, false, &authority)?);
    }
    Ok(extensions)
}

fn alternative_names(names: &[ServingName]) -> der::Result<SubjectAltName> {
    let names = names.iter().map(|name| {
        Ok(match name {
            ServingName::Dns(name) => GeneralName::DnsName(Ia5String::new(name)?),
            ServingName::Ip(address) => GeneralName::from(*address),
        })
    });
    names.collect::<der::Result<Vec<_>>>().map(SubjectAltName)
}

fn extension(
    extn_id: ObjectIdentifier,
    critical: bool,
    value: &impl Encode,
) -> der::Result<Extension> {
    Ok(Extension {
        extn_id,
        critical,
        extn_value: OctetString::new(value.to_der()?)?,
    })
}

fn sequence(parts: &[&[u8]]) -> der::Result<Vec<u8>> {
    Any::new(Tag::Sequence, parts.concat())?.to_der()
}

/// Generates a serial number.
pub(super) fn serial() -> Result<[u8; SERIAL_LEN], Unspecified> {
    let mut serial = [0; SERIAL_LEN];
    aws_lc_rs::rand::fill(&mut serial)?;
    Ok(serial)
}
