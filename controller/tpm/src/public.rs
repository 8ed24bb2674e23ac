//! Public keys in TPMs.

use aws_lc_rs::agreement::{Algorithm, ECDH_P256, ECDH_P384, ParsedPublicKey, UnparsedPublicKey};
use tpm2_protocol::data::{TpmsEccPoint, TpmuPublicId};

mod attestation;
mod endorsement;
mod roca;

pub(crate) use attestation::AttestationKey;
pub(crate) use endorsement::EndorsementKey;

/// The exponent 65537. A TPM does not generate keys with other exponents. In its structures, it writes this exponent as
/// 0 (Part 2, `TPMS_RSA_PARMS`).
pub(crate) const EXPONENT: [u8; 3] = [1, 0, 1];

const RSA_LEN: usize = 256;

/// A valid public key: a point on its curve, or a 2048-bit modulus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    /// The modulus.
    Rsa2048(Vec<u8>),
    /// The uncompressed point.
    P256(Vec<u8>),
    /// The uncompressed point.
    P384(Vec<u8>),
}

/// The reason why the bytes are not a valid key.
pub(crate) type NoKey = &'static str;

impl Key {
    /// Creates a key from this modulus.
    pub(crate) fn rsa(modulus: &[u8]) -> Result<Self, NoKey> {
        // The length in bytes is not sufficient: the first bit must also be set.
        if modulus.len() != RSA_LEN || modulus.first().is_none_or(|byte| *byte < 0x80) {
            return Err("the modulus is not 2048 bits long");
        }
        if modulus.last().is_none_or(|byte| byte % 2 == 0) {
            return Err("the modulus is even");
        }
        Ok(Self::Rsa2048(modulus.to_vec()))
    }

    /// Creates a key from this uncompressed point on P-256.
    pub(crate) fn p256(point: &[u8]) -> Result<Self, NoKey> {
        let point = on_curve(&ECDH_P256, point, 65).ok_or("the point is not on P-256")?;
        Ok(Self::P256(point))
    }

    /// Creates a key from this uncompressed point on P-384.
    pub(crate) fn p384(point: &[u8]) -> Result<Self, NoKey> {
        let point = on_curve(&ECDH_P384, point, 97).ok_or("the point is not on P-384")?;
        Ok(Self::P384(point))
    }

    /// DER of the `SubjectPublicKeyInfo` (RFC 3279, RFC 5480).
    pub(crate) fn spki(&self) -> Vec<u8> {
        match self {
            Self::Rsa2048(modulus) => [SPKI_RSA_2048, modulus, SPKI_EXPONENT].concat(),
            Self::P256(point) => [SPKI_P256, point].concat(),
            Self::P384(point) => [SPKI_P384, point].concat(),
        }
    }

    /// Whether this is an RSA key that can be factored (ROCA).
    fn is_weak(&self) -> bool {
        match self {
            Self::Rsa2048(modulus) => roca::is_marked(modulus),
            Self::P256(_) | Self::P384(_) => false,
        }
    }
}

/// Returns the point if it is on the curve, and in uncompressed form with `len` bytes.
fn on_curve(curve: &'static Algorithm, point: &[u8], len: usize) -> Option<Vec<u8>> {
    ParsedPublicKey::try_from(UnparsedPublicKey::new(curve, point)).ok()?;
    (point.len() == len).then(|| point.to_vec())
}

/// Returns the modulus in a public area.
fn modulus(unique: &TpmuPublicId) -> Result<Key, NoKey> {
    let TpmuPublicId::Rsa(modulus) = unique else {
        return Err("it has no modulus");
    };
    Key::rsa(modulus)
}

/// Returns the point in a public area, in uncompressed form. Each coordinate is at most `len` bytes long, because a TPM
/// can omit leading zeros.
fn point(unique: &TpmuPublicId, len: usize) -> Result<Vec<u8>, NoKey> {
    let TpmuPublicId::Ecc(TpmsEccPoint { x, y }) = unique else {
        return Err("it has no point");
    };
    let mut point = vec![4];
    for coordinate in [&**x, &**y] {
        let zeros = len.checked_sub(coordinate.len());
        let zeros = zeros.ok_or("a coordinate is too long for its curve")?;
        point.resize(point.len() + zeros, 0);
        point.extend_from_slice(coordinate);
    }
    Ok(point)
}

/// The coordinates of an uncompressed point.
pub(crate) fn coordinates(point: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, coordinates) = point.split_first()?;
    coordinates.split_at_checked(coordinates.len() / 2)
}

/// The DER before the point.
const SPKI_P256: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The DER before the point.
const SPKI_P384: &[u8] = &[
    0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b,
    0x81, 0x04, 0x00, 0x22, 0x03, 0x62, 0x00,
];

/// The DER before the modulus.
const SPKI_RSA_2048: &[u8] = &[
    0x30, 0x82, 0x01, 0x22, 0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01,
    0x01, 0x05, 0x00, 0x03, 0x82, 0x01, 0x0f, 0x00, 0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01,
    0x00,
];

/// The DER after the modulus.
const SPKI_EXPONENT: &[u8] = &[0x02, 0x03, 0x01, 0x00, 0x01];

#[cfg(test)]
mod tests;
