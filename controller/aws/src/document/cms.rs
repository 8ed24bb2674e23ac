//! The message that contains the document: CMS signed data (RFC 5652), in the only form that AWS sends.
//!
//! A message must not contain its own trust anchors: certificates, revocation lists, additional signers, or unsigned
//! attributes. The only signer of the message is looked up among the pinned signers by issuer and serial number, and
//! never only by name.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use x509_cert::der::asn1::{
    AnyRef, GeneralizedTime, ObjectIdentifier, OctetStringRef, UintRef, UtcTime,
};
use x509_cert::der::{Decode as _, Error, Reader as _, SliceReader, Tag};
use x509_cert::name::Name;

use super::fields::{as_set, context, optional, within};
use super::region_certificates::Signer;
use crate::denial::AwsDenial::{self, DocumentAlgorithm, DocumentAttributes, DocumentStructure};

const DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.1");
const SIGNED_DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.2");
const CONTENT_TYPE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.3");
const MESSAGE_DIGEST: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.4");
const SIGNING_TIME: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.5");
/// `CMSAlgorithmProtection` (RFC 6211).
const ALGORITHM_PROTECTION: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.52");
const SHA_256: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1");
const RSA_WITH_SHA_256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11");
/// RSA with a separate digest algorithm: AWS used this name for the same signature until 2020.
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");

/// The length of a signature with a 2048-bit key.
const SIGNATURE_LEN: usize = 256;
/// The maximum number of signed attributes. AWS sends four.
const MAX_ATTRIBUTES: usize = 16;

/// A message with a valid structure. Its signature has not been verified yet.
#[derive(Debug)]
pub(super) struct SignedMessage<'a> {
    content: &'a [u8],
    digest: [u8; 32],
    issuer: Name,
    serial: UintRef<'a>,
    signed: Vec<u8>,
    signature: &'a [u8],
}

/// Content that the document signing key of a region signed. Only [`SignedMessage::verify`] creates it.
#[derive(Debug)]
pub(super) struct VerifiedContent<'a> {
    bytes: &'a [u8],
    digest: [u8; 32],
}

impl VerifiedContent<'_> {
    /// The signed bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The SHA-256 digest of the bytes.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

impl From<Error> for AwsDenial {
    fn from(_: Error) -> Self {
        DocumentStructure("an element is missing or has an unexpected type")
    }
}

impl<'a> SignedMessage<'a> {
    /// Parses a message, which must contain all required parts and no forbidden parts.
    pub(super) fn parse(der: &'a [u8]) -> Result<Self, AwsDenial> {
        let mut data = signed_data(der)?;
        let digests = within(&mut data, Tag::Set)?;
        let content = content(within(&mut data, Tag::Sequence)?)?;
        let certificates = optional(&mut data, context(0))?;
        let revocation_lists = optional(&mut data, context(1))?;
        if certificates.is_some() || revocation_lists.is_some() {
            return Err(AwsDenial::DocumentCertificates);
        }
        let mut signer = only_signer(within(&mut data, Tag::Set)?)?;
        data.finish()?;
        version(&mut signer)?;
        let unnamed = DocumentStructure("its signer is not identified by issuer and serial number");
        let name = optional(&mut signer, Tag::Sequence)?.ok_or(unnamed)?;
        let (issuer, serial): (Name, UintRef<'a>) =
            name.sequence(|name| Ok::<_, Error>((name.decode()?, name.decode()?)))?;
        only_sha_256(digests, algorithm(within(&mut signer, Tag::Sequence)?)?)?;
        let covered =
            optional(&mut signer, context(0))?.ok_or(DocumentAttributes("they are missing"))?;
        let signature_algorithm = algorithm(within(&mut signer, Tag::Sequence)?)?;
        if ![RSA_WITH_SHA_256, RSA].contains(&signature_algorithm) {
            return Err(DocumentAlgorithm("different signature algorithm"));
        }
        let signature = signer.decode::<&OctetStringRef>()?.as_bytes();
        if signature.len() != SIGNATURE_LEN {
            return Err(DocumentAlgorithm("the signature is not 2048 bits long"));
        }
        signer
            .finish()
            .map_err(|_| DocumentStructure("it has unsigned attributes"))?;
        let digest: [u8; 32] = Sha256::digest(content).into();
        Attributes::parse(covered)?.are_about(&digest, signature_algorithm)?;
        Ok(Self {
            content,
            digest,
            issuer,
            serial,
            signed: as_set(covered)?,
            signature,
        })
    }

    /// The content before its signature is verified. Used only for looking up the signer.
    pub(super) fn claimed_content(&self) -> &'a [u8] {
        self.content
    }

    /// Returns the content if its signature verifies with the signer that the message identifies. This signer must be
    /// in `signers`, the signers for `region`.
    pub(super) fn verify(
        self,
        signers: &[Signer],
        region: &str,
    ) -> Result<VerifiedContent<'a>, AwsDenial> {
        let region = region.to_owned();
        let issuer = self.issuer.to_string();
        let serial = self.serial.as_bytes();
        let Some(signer) = signers.iter().find(|signer| signer.is(&issuer, serial)) else {
            return Err(AwsDenial::DocumentSignerMismatch(region));
        };
        let verified = signer.key.verify_sig(&self.signed, self.signature);
        if verified.is_err() {
            return Err(AwsDenial::DocumentSignatureInvalid(region));
        }
        Ok(VerifiedContent {
            bytes: self.content,
            digest: self.digest,
        })
    }
}

/// `ContentInfo` of signed data: returns the fields of `SignedData` after its version.
fn signed_data(der: &[u8]) -> Result<SliceReader<'_>, AwsDenial> {
    let no_signed_data = DocumentStructure("it is not SignedData");
    let mut message = SliceReader::new(der)?;
    let Ok(mut info) = within(&mut message, Tag::Sequence) else {
        return Err(no_signed_data);
    };
    message.finish()?;
    if info.decode::<ObjectIdentifier>() != Ok(SIGNED_DATA) {
        return Err(no_signed_data);
    }
    let mut explicit = within(&mut info, context(0))?;
    info.finish()?;
    let mut data = within(&mut explicit, Tag::Sequence)?;
    explicit.finish()?;
    version(&mut data)?;
    Ok(data)
}

/// Checks the version. Version 1 means plain data, and a signer identified by issuer and serial number (RFC 5652
/// sections 5.1 and 5.3).
fn version(fields: &mut SliceReader<'_>) -> Result<(), AwsDenial> {
    match fields.decode::<u8>()? {
        1 => Ok(()),
        _ => Err(DocumentStructure("its version is not supported")),
    }
}

/// Reads the content of `EncapsulatedContentInfo`, which must be present and plain data.
fn content(mut info: SliceReader<'_>) -> Result<&[u8], AwsDenial> {
    if info.decode::<ObjectIdentifier>()? != DATA {
        return Err(DocumentStructure("its content is not plain data"));
    }
    let detached = DocumentStructure("its content is detached");
    let explicit = optional(&mut info, context(0))?.ok_or(detached)?;
    info.finish()?;
    Ok(<&OctetStringRef>::from_der(explicit.value())?.as_bytes())
}

fn only_signer(mut infos: SliceReader<'_>) -> Result<SliceReader<'_>, AwsDenial> {
    let mut signers = Vec::new();
    while !infos.is_finished() {
        signers.push(within(&mut infos, Tag::Sequence)?);
    }
    let count = signers.len();
    match <[SliceReader<'_>; 1]>::try_from(signers) {
        Ok([signer]) => Ok(signer),
        Err(_) => Err(AwsDenial::DocumentSigners(count)),
    }
}

/// Reads an `AlgorithmIdentifier` without parameters. For RSA and SHA-256, the parameters are NULL or absent.
fn algorithm(mut identifier: SliceReader<'_>) -> Result<ObjectIdentifier, AwsDenial> {
    let algorithm: ObjectIdentifier = identifier.decode()?;
    let parameters = optional(&mut identifier, Tag::Null)?;
    if !identifier.is_finished() || parameters.is_some_and(|null| !null.is_null()) {
        return Err(DocumentAlgorithm("an algorithm has parameters"));
    }
    Ok(algorithm)
}

/// Checks that SHA-256 is the only digest algorithm that the message announces, and that the signer uses it.
fn only_sha_256(mut announced: SliceReader<'_>, signer: ObjectIdentifier) -> Result<(), AwsDenial> {
    let first = algorithm(within(&mut announced, Tag::Sequence)?)?;
    if first == SHA_256 && signer == SHA_256 && announced.is_finished() {
        return Ok(());
    }
    Err(DocumentAlgorithm("different digest algorithm"))
}

/// The signed attributes by type. Each has one value.
///
/// Unknown attributes are ignored, because the signature covers them, and AWS has added attributes before. Repeated
/// attributes are rejected (for the known attributes: RFC 5652 section 5.3).
#[derive(Debug)]
struct Attributes<'a>(BTreeMap<ObjectIdentifier, AnyRef<'a>>);

impl<'a> Attributes<'a> {
    fn parse(signed: AnyRef<'a>) -> Result<Self, AwsDenial> {
        let malformed = |_: Error| DocumentAttributes("an attribute is malformed");
        let mut found = BTreeMap::new();
        let mut rest = SliceReader::new(signed.value()).map_err(malformed)?;
        while !rest.is_finished() {
            let (kind, value) = attribute(&mut rest).map_err(malformed)?;
            if found.insert(kind, value).is_some() {
                return Err(DocumentAttributes("an attribute is repeated"));
            }
            if found.len() > MAX_ATTRIBUTES {
                return Err(DocumentAttributes("there are too many"));
            }
        }
        Ok(Self(found))
    }

    /// Checks that the attributes describe plain data with this digest, signed with this algorithm.
    fn are_about(&self, digest: &[u8], signature: ObjectIdentifier) -> Result<(), AwsDenial> {
        let content_type = self.0.get(&CONTENT_TYPE);
        let content_type = content_type.ok_or(DocumentAttributes("the content type is missing"))?;
        if content_type.decode_as::<ObjectIdentifier>() != Ok(DATA) {
            return Err(DocumentAttributes("the content type is not plain data"));
        }
        let message_digest = self.0.get(&MESSAGE_DIGEST);
        let message_digest = message_digest.ok_or(DocumentAttributes("the digest is missing"))?;
        let expected = OctetStringRef::new(digest);
        if message_digest.decode_as::<&OctetStringRef>() != expected {
            return Err(DocumentAttributes("the digest does not match the document"));
        }
        // The time does not prove freshness: it is the time of the document, or of a request to IMDS.
        if self.0.get(&SIGNING_TIME).is_some_and(|time| !is_time(time)) {
            return Err(DocumentAttributes("invalid signing time"));
        }
        match self
            .0
            .get(&ALGORITHM_PROTECTION)
            .map(|value| protected_algorithms(*value))
        {
            None => Ok(()),
            Some(Ok(algorithms)) if algorithms == [SHA_256, signature] => Ok(()),
            Some(_) => Err(DocumentAttributes("the protected algorithms differ")),
        }
    }
}

/// Returns the next attribute: its type, and its one value.
fn attribute<'a>(rest: &mut SliceReader<'a>) -> Result<(ObjectIdentifier, AnyRef<'a>), Error> {
    rest.sequence(|attribute| {
        let kind = attribute.decode()?;
        let mut values = within(attribute, Tag::Set)?;
        let value = values.decode()?;
        values.finish()?;
        Ok((kind, value))
    })
}

fn is_time(value: &AnyRef<'_>) -> bool {
    value.decode_as::<UtcTime>().is_ok() || value.decode_as::<GeneralizedTime>().is_ok()
}

/// Reads `CMSAlgorithmProtection` for a signature: its digest algorithm and its signature algorithm.
fn protected_algorithms(value: AnyRef<'_>) -> Result<[ObjectIdentifier; 2], AwsDenial> {
    let mut fields = SliceReader::new(value.value())?;
    let digest = algorithm(within(&mut fields, Tag::Sequence)?)?;
    let signature = algorithm(within(&mut fields, context(1))?)?;
    fields.finish()?;
    Ok([digest, signature])
}
