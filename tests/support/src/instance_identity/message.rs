//! The CMS message of `rsa2048` (RFC 5652), in parts that a test can change.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::TestSigner;
use crate::tlv::{
    CONSTRUCTED_OCTET_STRING, CONTEXT_0, CONTEXT_1, OCTET_STRING, SEQUENCE, UTC_TIME, algorithm,
    indefinite, integer, oid, sequence, set, tlv,
};

/// `id-data`.
pub const DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 1];
/// `id-signedData`.
pub const SIGNED_DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 2];
/// The attribute contentType.
pub const CONTENT_TYPE: &[u64] = &[1, 2, 840, 113_549, 1, 9, 3];
/// The attribute messageDigest.
pub const MESSAGE_DIGEST: &[u64] = &[1, 2, 840, 113_549, 1, 9, 4];
/// The attribute signingTime.
pub const SIGNING_TIME: &[u64] = &[1, 2, 840, 113_549, 1, 9, 5];
/// The attribute `CMSAlgorithmProtection`, RFC 6211.
pub const ALGORITHM_PROTECTION: &[u64] = &[1, 2, 840, 113_549, 1, 9, 52];
/// SHA-256.
pub const SHA_256: &[u64] = &[2, 16, 840, 1, 101, 3, 4, 2, 1];
/// SHA-1.
pub const SHA_1: &[u64] = &[1, 3, 14, 3, 2, 26];
/// RSA PKCS #1 v1.5 with SHA-256.
pub const RSA_WITH_SHA_256: &[u64] = &[1, 2, 840, 113_549, 1, 1, 11];
/// RSA without a digest algorithm, because the digest algorithm is in a different field. AWS used this algorithm until
/// 2020.
pub const RSA: &[u64] = &[1, 2, 840, 113_549, 1, 1, 1];
/// DSA with SHA-1.
pub const DSA_WITH_SHA_1: &[u64] = &[1, 2, 840, 10_040, 4, 3];

/// The signing time for a new instance: 3 seconds after the pending time of a [`super::Document`].
const SIGNED_AT: &[u8] = b"260101000003Z";
/// The size in bytes of the pieces into which AWS's encoder divides content.
const PIECE: usize = 1000;
/// The length of the base64 lines from IMDS.
const LINE: usize = 76;

/// A signed message. The fields are public, so a test can change a single field.
#[derive(Debug, Clone)]
pub struct Message {
    /// The type of the outermost content.
    pub outer_type: &'static [u64],
    /// The version of the signed data.
    pub version: u8,
    /// The announced digest algorithms.
    pub digest_algorithms: Vec<&'static [u64]>,
    /// The type of the signed content.
    pub content_type: &'static [u64],
    /// The signed content. `None` omits it.
    pub content: Option<Vec<u8>>,
    /// The certificates as DER. If empty, the field is omitted.
    pub certificates: Vec<Vec<u8>>,
    /// The revocation lists as DER. If empty, the field is omitted.
    pub revocation_lists: Vec<Vec<u8>>,
    /// The signers.
    pub signers: Vec<SignerInfo>,
    /// The number of content bytes in one piece.
    pub piece: usize,
}

/// The data about one signer in a message.
#[derive(Debug, Clone)]
pub struct SignerInfo {
    /// The version of the signer's data.
    pub version: u8,
    /// The issuer of the signer's certificate as DER.
    pub issuer: Vec<u8>,
    /// The serial number of the signer's certificate, big-endian.
    pub serial: Vec<u8>,
    /// The algorithm of the digest.
    pub digest_algorithm: &'static [u64],
    /// The signed attributes. If empty, the field is omitted.
    pub attributes: Vec<Attribute>,
    /// The algorithm of the signature.
    pub signature_algorithm: &'static [u64],
    /// The signature.
    pub signature: Vec<u8>,
    /// The unsigned attributes. If empty, the field is omitted.
    pub unsigned_attributes: Vec<Attribute>,
}

/// One attribute.
#[derive(Debug, Clone)]
pub struct Attribute {
    /// The type of the attribute.
    pub kind: &'static [u64],
    /// The values of the attribute, as DER.
    pub values: Vec<Vec<u8>>,
}

impl Attribute {
    /// The attribute contentType.
    pub fn content_type(kind: &[u64]) -> Self {
        Self::single(CONTENT_TYPE, oid(kind))
    }

    /// The attribute messageDigest.
    pub fn message_digest(digest: &[u8]) -> Self {
        Self::single(MESSAGE_DIGEST, tlv(OCTET_STRING, digest))
    }

    /// The attribute signingTime, as `YYMMDDHHMMSSZ`.
    pub fn signing_time(time: &[u8]) -> Self {
        Self::single(SIGNING_TIME, tlv(UTC_TIME, time))
    }

    /// The attribute `CMSAlgorithmProtection`.
    pub fn algorithm_protection(digest: &[u64], signature: &[u64]) -> Self {
        let signature = tlv(CONTEXT_1, &[oid(signature), vec![5, 0]].concat());
        Self::single(
            ALGORITHM_PROTECTION,
            sequence(&[algorithm(digest), signature]),
        )
    }

    /// An attribute with one value as DER.
    pub fn single(kind: &'static [u64], value: Vec<u8>) -> Self {
        Self {
            kind,
            values: vec![value],
        }
    }

    fn to_der(&self) -> Vec<u8> {
        sequence(&[oid(self.kind), set(self.values.clone())])
    }
}

impl SignerInfo {
    /// The signed bytes: the attributes as a SET or, if there are none, the content itself.
    pub fn signed_bytes(&self, content: &[u8]) -> Vec<u8> {
        if self.attributes.is_empty() {
            return content.to_vec();
        }
        set(self.attributes.iter().map(Attribute::to_der).collect())
    }

    fn to_der(&self) -> Vec<u8> {
        let attributes = |tag, attributes: &[Attribute]| {
            let mut encoded = set(attributes.iter().map(Attribute::to_der).collect());
            encoded[0] = tag;
            if attributes.is_empty() {
                Vec::new()
            } else {
                encoded
            }
        };
        sequence(&[
            integer(&[self.version]),
            sequence(&[self.issuer.clone(), integer(&self.serial)]),
            algorithm(self.digest_algorithm),
            attributes(CONTEXT_0, &self.attributes),
            algorithm(self.signature_algorithm),
            tlv(OCTET_STRING, &self.signature),
            attributes(CONTEXT_1, &self.unsigned_attributes),
        ])
    }
}

impl Message {
    /// Creates an unsigned message with this content, for the signer that has this issuer and serial number.
    pub(super) fn unsigned(content: &[u8], issuer: Vec<u8>, serial: &[u8]) -> Self {
        let signer = SignerInfo {
            version: 1,
            issuer,
            serial: serial.to_vec(),
            digest_algorithm: SHA_256,
            attributes: vec![
                Attribute::content_type(DATA),
                Attribute::signing_time(SIGNED_AT),
                Attribute::algorithm_protection(SHA_256, RSA_WITH_SHA_256),
                Attribute::message_digest(digest(&SHA256, content).as_ref()),
            ],
            signature_algorithm: RSA_WITH_SHA_256,
            signature: Vec::new(),
            unsigned_attributes: Vec::new(),
        };
        Self {
            outer_type: SIGNED_DATA,
            version: 1,
            digest_algorithms: vec![SHA_256],
            content_type: DATA,
            content: Some(content.to_vec()),
            certificates: Vec::new(),
            revocation_lists: Vec::new(),
            signers: vec![signer],
            piece: PIECE,
        }
    }

    /// Signs the message again, after a change to its signed parts.
    pub fn sign(&mut self, signer: &TestSigner) {
        let content = self.content.as_deref().unwrap_or_default();
        for info in &mut self.signers {
            info.signature = signer.signature(&info.signed_bytes(content));
        }
    }

    /// Returns the same message with a change to its only signer, which `signer` signs again.
    pub fn resigned(mut self, signer: &TestSigner, change: impl FnOnce(&mut SignerInfo)) -> Self {
        change(&mut self.signers[0]);
        self.sign(signer);
        self
    }

    /// The message in AWS's encoding: indefinite lengths, except in the content, which is divided into pieces.
    pub fn to_ber(&self) -> Vec<u8> {
        let content = self.content.as_ref().map_or(Vec::new(), |content| {
            let pieces = content
                .chunks(self.piece)
                .map(|piece| tlv(OCTET_STRING, piece));
            let pieces: Vec<u8> = pieces.flatten().collect();
            indefinite(CONTEXT_0, &indefinite(CONSTRUCTED_OCTET_STRING, &pieces))
        });
        self.encode(&content, indefinite)
    }

    /// The same message in DER.
    pub fn to_der(&self) -> Vec<u8> {
        let content = self.content.as_ref().map_or(Vec::new(), |content| {
            tlv(CONTEXT_0, &tlv(OCTET_STRING, content))
        });
        self.encode(&content, tlv)
    }

    /// The response from IMDS: [`Message::to_ber`] as lines of base64.
    pub fn to_base64(&self) -> String {
        to_lines(&self.to_ber())
    }

    fn encode(&self, content: &[u8], wrap: fn(u8, &[u8]) -> Vec<u8>) -> Vec<u8> {
        let digests = self.digest_algorithms.iter().map(|kind| algorithm(kind));
        let optional = |tag, members: &[Vec<u8>]| match members {
            [] => Vec::new(),
            members => tlv(tag, &members.concat()),
        };
        let signed_data = [
            integer(&[self.version]),
            set(digests.collect()),
            wrap(SEQUENCE, &[&oid(self.content_type), content].concat()),
            optional(CONTEXT_0, &self.certificates),
            optional(CONTEXT_1, &self.revocation_lists),
            set(self.signers.iter().map(SignerInfo::to_der).collect()),
        ]
        .concat();
        let explicit = wrap(CONTEXT_0, &wrap(SEQUENCE, &signed_data));
        wrap(SEQUENCE, &[oid(self.outer_type), explicit].concat())
    }
}

/// `bytes` as lines of base64, without a final newline.
pub fn to_lines(bytes: &[u8]) -> String {
    let base64 = STANDARD.encode(bytes);
    let lines: Vec<&str> = (0..base64.len())
        .step_by(LINE)
        .map(|at| &base64[at..base64.len().min(at + LINE)])
        .collect();
    lines.join("\n")
}
