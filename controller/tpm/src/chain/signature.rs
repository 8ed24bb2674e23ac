//! The verification of certificate signatures with an authority's key.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P256_SHA512_ASN1, ECDSA_P384_SHA256_ASN1,
    ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA512_ASN1, ECDSA_P521_SHA256_ASN1, ECDSA_P521_SHA384_ASN1,
    ECDSA_P521_SHA512_ASN1, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, UnparsedPublicKey,
    VerificationAlgorithm,
};
use kubelet_attestation::ensure;
use kubelet_attestation::errors::shortened;
use x509_parser::certificate::X509Certificate;
use x509_parser::objects::{oid_registry, oid2sn};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_NIST_EC_P521,
    OID_PKCS1_RSAENCRYPTION, OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA,
    OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384,
    OID_SIG_ECDSA_WITH_SHA512, Oid,
};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::checks::{Checks, TooManyChecks};
use super::name::MAX_LEN;

/// An authority's public key of a supported type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AuthorityKey {
    kind: Kind,
    /// The point of an ECC key, or the `RSAPublicKey`.
    bytes: Vec<u8>,
}

#[derive(derive_more::Display, Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[display("RSA")]
    Rsa,
    #[display("P-256")]
    P256,
    #[display("P-384")]
    P384,
    #[display("P-521")]
    P521,
}

/// The reason why a key did not sign a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(super) enum NotSigned {
    #[error("the certificate names two signature algorithms, {outer} and {inner}")]
    TwoAlgorithms { outer: String, inner: String },
    #[error(
        "the signature algorithm {0} is not accepted; RSA PKCS #1 and ECDSA with SHA-256, SHA-384 or SHA-512 are \
         accepted"
    )]
    Algorithm(String),
    #[error("its key ({key}) does not match the signature algorithm ({algorithm})")]
    KeyOfAnotherKind { key: String, algorithm: String },
    #[error("the signature ({0}) does not match its key")]
    Invalid(String),
}

/// The supported keys, for messages.
pub(super) const SUPPORTED: &str =
    "RSA with 2048 to 8192 bits, and ECDSA on P-256, P-384 and P-521, are supported";

/// The supported lengths of RSA keys, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

impl AuthorityKey {
    /// Parses the key. The error describes a key that is not supported.
    pub(super) fn read(spki: &SubjectPublicKeyInfo<'_>) -> Result<Self, String> {
        let algorithm = &spki.algorithm.algorithm;
        let kind = if *algorithm == OID_PKCS1_RSAENCRYPTION {
            let Ok(PublicKey::RSA(key)) = spki.parsed() else {
                return Err("a malformed RSA key".to_owned());
            };
            let bits = bits_of(key.modulus);
            ensure!(RSA_BITS.contains(&bits), format!("RSA with {bits} bits"));
            Kind::Rsa
        } else if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
            let curve = spki.algorithm.parameters.as_ref();
            let curve = curve.and_then(|curve| curve.as_oid().ok());
            let curve = curve.ok_or("ECDSA on a curve without a name")?;
            let kinds = [
                (OID_EC_P256, Kind::P256),
                (OID_NIST_EC_P384, Kind::P384),
                (OID_NIST_EC_P521, Kind::P521),
            ];
            let mut kinds = kinds.into_iter();
            let kind = kinds.find_map(|(oid, kind)| (oid == curve).then_some(kind));
            kind.ok_or_else(|| format!("ECDSA on the curve {}", name_of(&curve)))?
        } else {
            return Err(name_of(algorithm));
        };
        let bytes = spki.subject_public_key.data.to_vec();
        ParsedPublicKey::new(kind.algorithms().sha256, &bytes)
            .map_err(|_| format!("{kind}, and malformed"))?;
        Ok(Self { kind, bytes })
    }

    /// Checks that this key created the signature.
    ///
    /// # Errors
    ///
    /// Returns an error if the request needs too many signature checks.
    pub(super) async fn signed(
        &self,
        signature: &Signature,
        checks: &mut Checks<'_>,
    ) -> Result<Result<(), NotSigned>, TooManyChecks> {
        let (verifies_with, algorithm) = match self.algorithm(signature) {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let verify = || {
            let key = UnparsedPublicKey::new(verifies_with, &self.bytes);
            key.verify(&signature.signed, &signature.value)
        };
        let verified = checks.run(verify).await?;
        Ok(verified.map_err(|_| NotSigned::Invalid(algorithm)))
    }

    /// Returns the algorithm of the signature, and the name of the algorithm, if this key could have created the
    /// signature.
    fn algorithm(
        &self,
        signature: &Signature,
    ) -> Result<(&'static dyn VerificationAlgorithm, String), NotSigned> {
        let (oid, is_rsa, digest) = signature.algorithm.clone()?;
        let algorithm = name_of(oid);
        if *is_rsa != (self.kind == Kind::Rsa) {
            return Err(NotSigned::KeyOfAnotherKind {
                key: self.kind.to_string(),
                algorithm,
            });
        }
        Ok((digest(self.kind.algorithms()), algorithm))
    }
}

/// The signature of a certificate.
#[derive(Debug)]
pub(super) struct Signature {
    /// The signed part of the certificate.
    signed: Vec<u8>,
    value: Vec<u8>,
    algorithm: Result<&'static Accepted, NotSigned>,
}

impl Signature {
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Self {
        Self {
            signed: certificate.tbs_certificate.as_ref().to_vec(),
            value: certificate.signature_value.data.to_vec(),
            algorithm: accepted(certificate),
        }
    }

    /// Returns the number of bytes that this value keeps in memory.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.signed.len() + self.value.len()
    }
}

/// Returns the algorithm of the certificate's signature.
fn accepted(certificate: &X509Certificate<'_>) -> Result<&'static Accepted, NotSigned> {
    let outer = &certificate.signature_algorithm;
    // The signature covers only the inner algorithm identifier.
    let inner = &certificate.tbs_certificate.signature;
    if outer != inner {
        return Err(NotSigned::TwoAlgorithms {
            outer: name_of(outer.oid()),
            inner: name_of(inner.oid()),
        });
    }
    let mut accepted = ACCEPTED.iter();
    let found = accepted.find(|(oid, _, _)| oid == outer.oid());
    found.ok_or_else(|| NotSigned::Algorithm(name_of(outer.oid())))
}

/// The signature algorithms for one key type.
struct Algorithms {
    sha256: &'static dyn VerificationAlgorithm,
    sha384: &'static dyn VerificationAlgorithm,
    sha512: &'static dyn VerificationAlgorithm,
}

impl Kind {
    fn algorithms(self) -> &'static Algorithms {
        match self {
            Self::Rsa => &RSA,
            Self::P256 => &P256,
            Self::P384 => &P384,
            Self::P521 => &P521,
        }
    }
}

static RSA: Algorithms = Algorithms {
    sha256: &RSA_PKCS1_2048_8192_SHA256,
    sha384: &RSA_PKCS1_2048_8192_SHA384,
    sha512: &RSA_PKCS1_2048_8192_SHA512,
};

static P256: Algorithms = Algorithms {
    sha256: &ECDSA_P256_SHA256_ASN1,
    sha384: &ECDSA_P256_SHA384_ASN1,
    sha512: &ECDSA_P256_SHA512_ASN1,
};

static P384: Algorithms = Algorithms {
    sha256: &ECDSA_P384_SHA256_ASN1,
    sha384: &ECDSA_P384_SHA384_ASN1,
    sha512: &ECDSA_P384_SHA512_ASN1,
};

static P521: Algorithms = Algorithms {
    sha256: &ECDSA_P521_SHA256_ASN1,
    sha384: &ECDSA_P521_SHA384_ASN1,
    sha512: &ECDSA_P521_SHA512_ASN1,
};

/// Selects the algorithm that uses one digest.
type Digest = fn(&'static Algorithms) -> &'static dyn VerificationAlgorithm;

/// An accepted signature algorithm: its OID, a flag that is true for RSA keys, and its digest.
type Accepted = (Oid<'static>, bool, Digest);

/// The accepted signature algorithms. SHA-1 is not accepted.
static ACCEPTED: [Accepted; 6] = [
    (OID_PKCS1_SHA256WITHRSA, true, |of| of.sha256),
    (OID_PKCS1_SHA384WITHRSA, true, |of| of.sha384),
    (OID_PKCS1_SHA512WITHRSA, true, |of| of.sha512),
    (OID_SIG_ECDSA_WITH_SHA256, false, |of| of.sha256),
    (OID_SIG_ECDSA_WITH_SHA384, false, |of| of.sha384),
    (OID_SIG_ECDSA_WITH_SHA512, false, |of| of.sha512),
];

/// The number of significant bits in a big-endian number.
fn bits_of(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let significant = number.get(zeros..).unwrap_or_default();
    let unused = significant.first().map_or(0, |byte| byte.leading_zeros());
    let unused = usize::try_from(unused).unwrap_or_default();
    significant.len().saturating_mul(8).saturating_sub(unused)
}

/// The name of an algorithm, or its OID. A certificate can contain an OID of any length.
fn name_of(oid: &Oid<'_>) -> String {
    let text = || shortened(&oid.to_id_string(), MAX_LEN).to_owned();
    oid2sn(oid, oid_registry()).map_or_else(|_| text(), str::to_owned)
}

#[cfg(test)]
mod tests;
