//! The algorithms of CA signatures.

use std::ops::RangeInclusive;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ECDSA_P521_SHA512_ASN1,
    RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use x509_cert::der::asn1::{Any, Null, ObjectIdentifier};
use x509_cert::spki::AlgorithmIdentifierOwned;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The accepted lengths of an RSA modulus, in bytes (2048 to 4096 bits). Signing with longer keys takes more time, and
/// their certificates are longer.
pub(super) const RSA_MODULUS_LEN: RangeInclusive<usize> = 256..=512;

/// The signature algorithm of a CA, which the CA key determines: each curve is used with the hash of the same strength.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an external signer must support each algorithm"
)]
pub enum SignatureAlgorithm {
    /// ECDSA on P-256 with SHA-256.
    EcdsaP256Sha256,
    /// ECDSA on P-384 with SHA-384.
    EcdsaP384Sha384,
    /// ECDSA on P-521 with SHA-512.
    EcdsaP521Sha512,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    RsaPkcs1Sha256,
}

impl SignatureAlgorithm {
    /// The signature algorithm for this public key. `None` if the type or the size of the key is not supported.
    pub(super) fn of(key: &SubjectPublicKeyInfo<'_>) -> Option<Self> {
        match key.parsed().ok()? {
            PublicKey::RSA(rsa) => {
                let leading = rsa.modulus.iter().take_while(|&&byte| byte == 0).count();
                let len = rsa.modulus.len().saturating_sub(leading);
                RSA_MODULUS_LEN
                    .contains(&len)
                    .then_some(Self::RsaPkcs1Sha256)
            }
            PublicKey::EC(_) => {
                let curve = key.algorithm.parameters.as_ref()?.as_oid().ok()?;
                Self::of_curve(&curve.to_id_string())
            }
            PublicKey::DSA(_)
            | PublicKey::GostR3410(_)
            | PublicKey::GostR3410_2012(_)
            | PublicKey::Unknown(_) => None,
        }
    }

    /// The signature algorithm for keys on the curve with this object identifier. `None` if the curve is not supported.
    pub(super) fn of_curve(curve: &str) -> Option<Self> {
        match curve {
            "1.2.840.10045.3.1.7" => Some(Self::EcdsaP256Sha256),
            "1.3.132.0.34" => Some(Self::EcdsaP384Sha384),
            "1.3.132.0.35" => Some(Self::EcdsaP521Sha512),
            _ => None,
        }
    }

    /// The `AlgorithmIdentifier`. The parameters are `NULL` for RSA (RFC 4055 section 5), and absent for ECDSA (RFC
    /// 5758 section 3.2).
    pub(super) fn identifier(self) -> AlgorithmIdentifierOwned {
        let (oid, parameters) = match self {
            Self::EcdsaP256Sha256 => ("1.2.840.10045.4.3.2", None),
            Self::EcdsaP384Sha384 => ("1.2.840.10045.4.3.3", None),
            Self::EcdsaP521Sha512 => ("1.2.840.10045.4.3.4", None),
            Self::RsaPkcs1Sha256 => ("1.2.840.113549.1.1.11", Some(Any::from(Null))),
        };
        AlgorithmIdentifierOwned {
            oid: ObjectIdentifier::new_unwrap(oid),
            parameters,
        }
    }

    /// Whether this public key verifies the signature of the message.
    pub(super) fn is_signed_by(self, public_key: &[u8], message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &dyn VerificationAlgorithm = match self {
            Self::EcdsaP256Sha256 => &ECDSA_P256_SHA256_ASN1,
            Self::EcdsaP384Sha384 => &ECDSA_P384_SHA384_ASN1,
            Self::EcdsaP521Sha512 => &ECDSA_P521_SHA512_ASN1,
            Self::RsaPkcs1Sha256 => &RSA_PKCS1_2048_8192_SHA256,
        };
        let key = UnparsedPublicKey::new(algorithm, public_key);
        key.verify(message, signature).is_ok()
    }
}
