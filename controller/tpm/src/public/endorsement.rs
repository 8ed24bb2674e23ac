//! Endorsement keys: what a TPM makes of a template of the TCG ("TCG EK Credential Profile", 2.5,
//! Annex B).

use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::refusal::TpmDenial;
use node_attestation_core::verifier::platform::KeyKind;
use tpm2_protocol::basic::{TpmUint16, TpmUint32};
use tpm2_protocol::data::{
    Tpm2bDigest, Tpm2bEccParameter, Tpm2bPublicKeyRsa, TpmAlgId, TpmEccCurve, TpmaObject,
    TpmsEccParms, TpmsEccPoint, TpmsRsaParms, TpmtEccScheme, TpmtKdfScheme, TpmtPublic,
    TpmtRsaScheme, TpmtSymDef, TpmuPublicId, TpmuPublicParms, TpmuSymKeyBits, TpmuSymMode,
};

use super::{Key, modulus, point};
use crate::structure::{Name, NameAlgorithm, encode, exactly};

/// An endorsement key of one of the templates: restricted to opening what was sealed for its TPM,
/// and never to leave it.
///
/// The whole public area follows from the key. So nothing that a machine says of it counts but the
/// key itself, and that is compared with the trusted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndorsementKey {
    key: Key,
    name: Name,
    digest: KeyDigest,
}

/// fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted, decrypt.
const LOW: u32 = 0x0003_00b2;

/// The same and userWithAuth.
const HIGH: u32 = 0x0003_00f2;

/// `PolicyA` of the profile: `TPM2_PolicySecret(TPM_RH_ENDORSEMENT)`.
const POLICY_A: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24,
    0xfd, 0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];

/// `PolicyB` of the profile, with SHA-384.
const POLICY_B: [u8; 48] = [
    0xb2, 0x6e, 0x7d, 0x28, 0xd1, 0x1a, 0x50, 0xbc, 0x53, 0xd8, 0x82, 0xbc, 0xf5, 0xfd, 0x3a, 0x1a,
    0x07, 0x41, 0x48, 0xbb, 0x35, 0xd3, 0xb4, 0xe4, 0xcb, 0x1c, 0x0a, 0xd9, 0xbd, 0xe4, 0x19, 0xca,
    0xcb, 0x47, 0xba, 0x09, 0x69, 0x96, 0x46, 0x15, 0x0f, 0x9f, 0xc0, 0x00, 0xf3, 0xf8, 0x0e, 0x12,
];

impl EndorsementKey {
    /// Reads a `TPMT_PUBLIC`, which must be the template of its kind of key around the key, byte
    /// for byte.
    ///
    /// # Errors
    ///
    /// [`TpmDenial::EndorsementKeyMalformed`], [`TpmDenial::EndorsementKeyNotOfTemplate`],
    /// [`TpmDenial::TpmKeyWeak`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, TpmDenial> {
        let malformed = |detail| TpmDenial::EndorsementKeyMalformed { detail };
        let public: TpmtPublic = exactly(bytes).ok_or(malformed("it is not one TPMT_PUBLIC"))?;
        let key = match public.parameters {
            TpmuPublicParms::Rsa(_) => modulus(&public.unique),
            TpmuPublicParms::Ecc(ref parameters)
                if parameters.curve_id == TpmEccCurve::NistP256 =>
            {
                point(&public.unique, 32).and_then(|point| Key::p256(&point))
            }
            TpmuPublicParms::Ecc(ref parameters)
                if parameters.curve_id == TpmEccCurve::NistP384 =>
            {
                point(&public.unique, 48).and_then(|point| Key::p384(&point))
            }
            TpmuPublicParms::Ecc(_)
            | TpmuPublicParms::KeyedHash(_)
            | TpmuPublicParms::SymCipher(_)
            | TpmuPublicParms::Null => return Err(TpmDenial::EndorsementKeyNotOfTemplate),
        };
        let key = key.map_err(malformed)?;
        let template = template(&key).ok_or(TpmDenial::EndorsementKeyNotOfTemplate)?;
        if template != bytes {
            return Err(TpmDenial::EndorsementKeyNotOfTemplate);
        }
        if key.is_weak() {
            return Err(TpmDenial::TpmKeyWeak {
                key: "endorsement key",
            });
        }
        Ok(Self {
            name: Name::of(name_algorithm(&key), &template),
            digest: KeyDigest::of(&key.spki()),
            key,
        })
    }

    /// The key.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Of which template.
    pub(crate) fn kind(&self) -> KeyKind {
        match self.key {
            Key::Rsa2048(_) => KeyKind::Rsa2048,
            Key::P256(_) => KeyKind::P256,
            Key::P384(_) => KeyKind::P384,
        }
    }

    /// The Name, over the template.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// SHA-256 of the key's `SubjectPublicKeyInfo`: what everybody else knows it by.
    pub(crate) fn digest(&self) -> KeyDigest {
        self.digest
    }
}

fn name_algorithm(key: &Key) -> NameAlgorithm {
    match key {
        Key::Rsa2048(_) | Key::P256(_) => NameAlgorithm::Sha256,
        Key::P384(_) => NameAlgorithm::Sha384,
    }
}

/// The public area that a TPM makes of a template's key: L-1, L-2, H-3.
///
/// A coordinate is as long as the curve's field: Part 1, "ECC Point Padding".
fn template(key: &Key) -> Option<Vec<u8>> {
    let (policy, attributes, bits): (&[u8], _, u16) = match key {
        Key::Rsa2048(_) | Key::P256(_) => (&POLICY_A, LOW, 128),
        Key::P384(_) => (&POLICY_B, HIGH, 256),
    };
    let symmetric = TpmtSymDef {
        algorithm: TpmAlgId::Aes,
        key_bits: TpmuSymKeyBits::Aes(TpmUint16::new(bits)),
        mode: TpmuSymMode::Aes(TpmAlgId::Cfb),
    };
    let ecc = |curve_id, point: &[u8]| {
        let parameters = TpmuPublicParms::Ecc(TpmsEccParms {
            symmetric,
            scheme: TpmtEccScheme::default(),
            curve_id,
            kdf: TpmtKdfScheme::default(),
        });
        Some((TpmAlgId::Ecc, parameters, coordinates(point)?))
    };
    let (object_type, parameters, unique) = match key {
        Key::Rsa2048(modulus) => (
            TpmAlgId::Rsa,
            TpmuPublicParms::Rsa(TpmsRsaParms {
                symmetric,
                scheme: TpmtRsaScheme::default(),
                key_bits: TpmUint16::new(2048),
                exponent: TpmUint32::new(0),
            }),
            TpmuPublicId::Rsa(Tpm2bPublicKeyRsa::try_from(modulus.as_slice()).ok()?),
        ),
        Key::P256(point) => ecc(TpmEccCurve::NistP256, point)?,
        Key::P384(point) => ecc(TpmEccCurve::NistP384, point)?,
    };
    encode(&TpmtPublic {
        object_type,
        name_alg: name_algorithm(key).identifier(),
        object_attributes: TpmaObject::from_bits_truncate(attributes),
        auth_policy: Tpm2bDigest::try_from(policy).ok()?,
        parameters,
        unique,
    })
}

fn coordinates(point: &[u8]) -> Option<TpmuPublicId> {
    let (_, coordinates) = point.split_first()?;
    let (x, y) = coordinates.split_at_checked(coordinates.len() / 2)?;
    Some(TpmuPublicId::Ecc(TpmsEccPoint {
        x: Tpm2bEccParameter::try_from(x).ok()?,
        y: Tpm2bEccParameter::try_from(y).ok()?,
    }))
}
