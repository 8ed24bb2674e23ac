//! Endorsement keys, which a TPM creates from a TCG template ("TCG EK Credential Profile", 2.5, Annex B).

use kubelet_attestation::ensure;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::verifier::platform::KeyKind;
use tpm2_protocol::data::{TpmEccCurve, TpmtPublic, TpmuPublicParms};

use super::{Key, coordinates, modulus, point};
use crate::denial::TpmDenial;
use crate::structure::{NAMED_BY_SHA_256, NAMED_BY_SHA_384, Name, NameAlgorithm, exactly, sized};

/// An endorsement key that was created from one of the templates. It can only decrypt data that was encrypted for its
/// TPM, and cannot leave the TPM.
///
/// The key determines the whole public area. Therefore the verifier uses only the key from the public area in the
/// evidence, and compares it with the trusted key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndorsementKey {
    key: Key,
    name: Name,
    digest: KeyDigest,
}

/// The template L-1: RSA with a SHA-256 Name; fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted,
/// decrypt; the length of the policy.
const L_1: &[u8] = &[0x00, 0x01, 0x00, 0x0b, 0x00, 0x03, 0x00, 0xb2, 0x00, 0x20];

/// The parameters of L-1: AES-128 in CFB mode, no scheme, 2048 bits, the default exponent.
const L_1_PARAMETERS: &[u8] = &[
    0x00, 0x06, 0x00, 0x80, 0x00, 0x43, 0x00, 0x10, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
];

/// The template L-2, which differs from L-1 only in that it uses ECC.
const L_2: &[u8] = &[0x00, 0x23, 0x00, 0x0b, 0x00, 0x03, 0x00, 0xb2, 0x00, 0x20];

/// The parameters of L-2: AES-128 in CFB mode, no scheme, P-256, no key derivation.
const L_2_PARAMETERS: &[u8] = &[
    0x00, 0x06, 0x00, 0x80, 0x00, 0x43, 0x00, 0x10, 0x00, 0x03, 0x00, 0x10,
];

/// The template H-3: ECC with a SHA-384 Name; the attributes of L-1 and userWithAuth; the length of the policy.
const H_3: &[u8] = &[0x00, 0x23, 0x00, 0x0c, 0x00, 0x03, 0x00, 0xf2, 0x00, 0x30];

/// The parameters of H-3: AES-256 in CFB mode, no scheme, P-384, no key derivation.
const H_3_PARAMETERS: &[u8] = &[
    0x00, 0x06, 0x01, 0x00, 0x00, 0x43, 0x00, 0x10, 0x00, 0x04, 0x00, 0x10,
];

/// `PolicyA` in the profile: `TPM2_PolicySecret(TPM_RH_ENDORSEMENT)`.
const POLICY_A: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24,
    0xfd, 0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];

/// `PolicyB` in the profile, with SHA-384.
const POLICY_B: [u8; 48] = [
    0xb2, 0x6e, 0x7d, 0x28, 0xd1, 0x1a, 0x50, 0xbc, 0x53, 0xd8, 0x82, 0xbc, 0xf5, 0xfd, 0x3a, 0x1a,
    0x07, 0x41, 0x48, 0xbb, 0x35, 0xd3, 0xb4, 0xe4, 0xcb, 0x1c, 0x0a, 0xd9, 0xbd, 0xe4, 0x19, 0xca,
    0xcb, 0x47, 0xba, 0x09, 0x69, 0x96, 0x46, 0x15, 0x0f, 0x9f, 0xc0, 0x00, 0xf3, 0xf8, 0x0e, 0x12,
];

impl EndorsementKey {
    /// Parses a `TPMT_PUBLIC`, which must match the template for its key type, byte for byte.
    ///
    /// # Errors
    ///
    /// [`TpmDenial::EndorsementKeyMalformed`], [`TpmDenial::EndorsementKeyNotOfTemplate`],
    /// [`TpmDenial::TpmKeyWeak`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, TpmDenial> {
        let malformed = TpmDenial::EndorsementKeyMalformed;
        let public: TpmtPublic =
            exactly(bytes).ok_or(malformed("it is not exactly one TPMT_PUBLIC"))?;
        let key = match &public.parameters {
            TpmuPublicParms::Rsa(_) => modulus(&public.unique),
            TpmuPublicParms::Ecc(ecc) if ecc.curve_id == TpmEccCurve::NistP256 => {
                point(&public.unique, 32).and_then(|point| Key::p256(&point))
            }
            TpmuPublicParms::Ecc(ecc) if ecc.curve_id == TpmEccCurve::NistP384 => {
                point(&public.unique, 48).and_then(|point| Key::p384(&point))
            }
            TpmuPublicParms::Ecc(_)
            | TpmuPublicParms::KeyedHash(_)
            | TpmuPublicParms::SymCipher(_)
            | TpmuPublicParms::Null => return Err(TpmDenial::EndorsementKeyNotOfTemplate),
        };
        let key = key.map_err(malformed)?;
        let (algorithm, _) = template(&key)
            .filter(|(_, template)| template == bytes)
            .ok_or(TpmDenial::EndorsementKeyNotOfTemplate)?;
        ensure!(!key.is_weak(), TpmDenial::TpmKeyWeak("endorsement key"));
        Ok(Self {
            name: Name::of(algorithm, bytes),
            digest: KeyDigest::of(&key.spki()),
            key,
        })
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the kind of the key, which identifies the template.
    pub(crate) fn kind(&self) -> KeyKind {
        match self.key {
            Key::Rsa2048(_) => KeyKind::Rsa2048,
            Key::P256(_) => KeyKind::P256,
            Key::P384(_) => KeyKind::P384,
        }
    }

    /// Returns the Name of the key, which is calculated from the template.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// SHA-256 of the key's `SubjectPublicKeyInfo`, which identifies the key in lists and provider IDs.
    pub(crate) fn digest(&self) -> KeyDigest {
        self.digest
    }
}

/// Builds the public area of a key from its template (L-1, L-2 or H-3). Also returns the algorithm of the key's Name.
///
/// Each coordinate has the length of a field element of the curve: Part 1, "ECC Point Padding".
fn template(key: &Key) -> Option<(NameAlgorithm, Vec<u8>)> {
    Some(match key {
        Key::Rsa2048(modulus) => {
            let area = [L_1, &POLICY_A, L_1_PARAMETERS, &sized(modulus)?];
            (NAMED_BY_SHA_256, area.concat())
        }
        Key::P256(point) => {
            let area = [L_2, &POLICY_A, L_2_PARAMETERS, &sized_point(point)?];
            (NAMED_BY_SHA_256, area.concat())
        }
        Key::P384(point) => {
            let area = [H_3, &POLICY_B, H_3_PARAMETERS, &sized_point(point)?];
            (NAMED_BY_SHA_384, area.concat())
        }
    })
}

/// A `TPMS_ECC_POINT`.
fn sized_point(point: &[u8]) -> Option<Vec<u8>> {
    let (x, y) = coordinates(point)?;
    Some([sized(x)?, sized(y)?].concat())
}
