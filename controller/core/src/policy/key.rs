//! The key in the request, and the proof of possession.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use kubelet_attestation::csr::oid;
use kubelet_attestation::csr::parse::CertificationRequest;

use crate::refusal::Denial;

/// The first byte of an uncompressed point (SEC 1 section 2.3.3). Two 32-byte coordinates follow.
const UNCOMPRESSED: u8 = 4;
const POINT_LEN: usize = 65;

/// Accepts only an ECDSA key on the named curve P-256. With a single algorithm, an attacker cannot downgrade the key.
/// The controller also does not compute with RSA keys of unusual sizes, or with explicit curve parameters.
pub(crate) fn accepted(csr: &CertificationRequest) -> Result<ParsedPublicKey, Denial> {
    let (algorithm, curve) = csr.key_algorithm();
    if algorithm != oid::EC_PUBLIC_KEY || curve != Some(oid::P256) {
        return Err(Denial::KeyNotAccepted(curve.unwrap_or(algorithm)));
    }
    let point = csr
        .key_bits()
        .filter(|point| point.len() == POINT_LEN && point.first() == Some(&UNCOMPRESSED))
        .ok_or(Denial::KeyNotOnCurve)?;
    ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).map_err(|_| Denial::KeyNotOnCurve)
}

/// Checks that the request is signed with its own key.
pub(crate) fn signed_by(csr: &CertificationRequest, key: &ParsedPublicKey) -> Result<(), Denial> {
    if csr.signature_algorithm() != Some(oid::ECDSA_WITH_SHA256) {
        return Err(Denial::SignatureAlgorithmNotAccepted);
    }
    let signature = csr.signature().ok_or(Denial::SelfSignatureInvalid)?;
    key.verify_sig(csr.signed_bytes(), signature)
        .map_err(|_| Denial::SelfSignatureInvalid)
}
