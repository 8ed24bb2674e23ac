//! The signatures of authorities on certificates.

use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::{
    OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION, OID_PKCS1_SHA256WITHRSA,
    OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384, Oid,
};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

/// `Some` if the key of `spki` signed the certificate, with one of [`ALGORITHMS`].
pub(super) fn verifies(spki: &[u8], certificate: &X509Certificate<'_>) -> Option<()> {
    // The inner one is what is signed.
    if certificate.signature_algorithm != certificate.tbs_certificate.signature {
        return None;
    }
    let (_, spki) = SubjectPublicKeyInfo::from_der(spki).ok()?;
    let algorithm = certificate.signature_algorithm.oid();
    let (_, key_type) = ALGORITHMS.iter().find(|(oid, _)| oid == algorithm)?;
    if spki.algorithm.algorithm != *key_type {
        return None;
    }
    certificate.verify_signature(Some(&spki)).ok()
}

/// The signature algorithms of authorities, none with SHA-1, and the types of the keys that sign with
/// them. Of the curves, P-256 and P-384 are verified.
static ALGORITHMS: [(Oid<'static>, Oid<'static>); 5] = [
    (OID_PKCS1_SHA256WITHRSA, OID_PKCS1_RSAENCRYPTION),
    (OID_PKCS1_SHA384WITHRSA, OID_PKCS1_RSAENCRYPTION),
    (OID_PKCS1_SHA512WITHRSA, OID_PKCS1_RSAENCRYPTION),
    (OID_SIG_ECDSA_WITH_SHA256, OID_KEY_TYPE_EC_PUBLIC_KEY),
    (OID_SIG_ECDSA_WITH_SHA384, OID_KEY_TYPE_EC_PUBLIC_KEY),
];
