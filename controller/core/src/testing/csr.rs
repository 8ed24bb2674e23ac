//! A PKCS#10 request in parts, which is signed when it is encoded.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

use super::der;

pub const NODE_CN: &str = "system:node:n1";
pub const PROVIDER_ID_OID: &str = "1.3.6.1.4.1.11129.2.1.21";

const EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";
const P256: &str = "1.2.840.10045.3.1.7";
const ECDSA_WITH_SHA256: &str = "1.2.840.10045.4.3.2";
const EXTENSION_REQUEST: &str = "1.2.840.113549.1.9.14";

pub struct Csr {
    /// The parts of the subject, each of which is a SET.
    pub subject: Vec<Vec<u8>>,
    /// The key type: the content of the `AlgorithmIdentifier`.
    pub key_algorithm: Vec<Vec<u8>>,
    /// The bits of the public key. If it is `None`, the bits of `key` are used.
    pub key_bits: Option<Vec<u8>>,
    /// Requested extensions.
    pub extensions: Vec<Vec<u8>>,
    /// All attributes. If it is `None`, the request contains only the attribute with the extensions.
    pub attributes: Option<Vec<Vec<u8>>>,
    /// The content of the signature's `AlgorithmIdentifier`.
    pub signature_algorithm: Vec<Vec<u8>>,
    /// The signature. If it is `None`, the request is signed with its own key.
    pub signature: Option<Vec<u8>>,
    /// The key that signs the request.
    pub key: EcdsaKeyPair,
}

fn attribute(oid: &str, value: Vec<u8>) -> Vec<u8> {
    der::sequence(&[der::oid(oid), value])
}

pub fn extension(oid: &str, critical: bool, value: &[u8]) -> Vec<u8> {
    let mut parts = vec![der::oid(oid)];
    if critical {
        parts.push(der::boolean(true));
    }
    parts.push(der::octets(value));
    der::sequence(&parts)
}

impl Csr {
    /// A request of machine `m1` for node `n1`.
    pub fn valid() -> Self {
        Self {
            subject: vec![
                Self::part("2.5.4.10", der::utf8("system:nodes")),
                Self::part("2.5.4.3", der::utf8(NODE_CN)),
            ],
            key_algorithm: vec![der::oid(EC_PUBLIC_KEY), der::oid(P256)],
            key_bits: None,
            extensions: vec![extension(
                PROVIDER_ID_OID,
                false,
                &der::utf8("metal:///rack/m1"),
            )],
            attributes: None,
            signature_algorithm: vec![der::oid(ECDSA_WITH_SHA256)],
            signature: None,
            key: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap(),
        }
    }

    pub fn part(oid: &str, value: Vec<u8>) -> Vec<u8> {
        der::set(&[attribute(oid, value)])
    }

    /// Replaces the subject, with one attribute in each part.
    pub fn with_subject(attributes: &[(&str, Vec<u8>)]) -> Self {
        Self {
            subject: attributes
                .iter()
                .map(|(oid, value)| Self::part(oid, value.clone()))
                .collect(),
            ..Self::valid()
        }
    }

    /// Adds an extension.
    pub fn with_extension(extension: Vec<u8>) -> Self {
        let mut csr = Self::valid();
        csr.extensions.push(extension);
        csr
    }

    pub fn extension_request(extensions: &[Vec<u8>]) -> Vec<u8> {
        attribute(EXTENSION_REQUEST, der::set(&[der::sequence(extensions)]))
    }

    pub fn spki(&self) -> Vec<u8> {
        let own = self.key.public_key().as_ref();
        der::sequence(&[
            der::sequence(&self.key_algorithm),
            der::bits(self.key_bits.as_deref().unwrap_or(own)),
        ])
    }

    fn to_be_signed(&self) -> Vec<u8> {
        let attributes = self
            .attributes
            .clone()
            .unwrap_or_else(|| vec![Self::extension_request(&self.extensions)]);
        der::sequence(&[
            der::integer(&[0]),
            der::sequence(&self.subject),
            self.spki(),
            der::tlv(0xa0, &attributes.concat()),
        ])
    }

    pub fn der(&self) -> Vec<u8> {
        let signed = self.to_be_signed();
        let signature = self.signature.clone().unwrap_or_else(|| {
            let signature = self.key.sign(&SystemRandom::new(), &signed).unwrap();
            signature.as_ref().to_vec()
        });
        der::sequence(&[
            signed,
            der::sequence(&self.signature_algorithm),
            der::bits(&signature),
        ])
    }
}
