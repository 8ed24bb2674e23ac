//! Attestation keys, which sign only statements that their TPM created.

use kubelet_attestation::ensure;
use tpm2_protocol::basic::{TpmUint16, TpmUint32};
use tpm2_protocol::data::{
    TpmAlgId, TpmEccCurve, TpmsEccParms, TpmsRsaParms, TpmsSchemeHash, TpmtEccScheme,
    TpmtKdfScheme, TpmtPublic, TpmtRsaScheme, TpmtSymDef, TpmuAsymScheme, TpmuPublicParms,
};

use super::{Key, modulus, point};
use crate::denial::TpmDenial;
use crate::structure::{NAMED_BY_SHA_256, NAMED_BY_SHA_384, Name, encode, exactly};

/// An attestation key, from its public area. The challenge verifies that the TPM contains the key, because the TPM
/// decrypts the secret of the challenge only if it contains a key with this [`name`](Self::name).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttestationKey {
    key: Key,
    name: Name,
}

/// Exactly the attributes fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, noDA, restricted and sign.
///
/// `TPM2_ActivateCredential` decrypts a secret for every loaded object, including software keys. Therefore, only these
/// attributes show that the TPM itself created a signed statement.
const ATTRIBUTES: u32 = 0x0005_0472;

impl AttestationKey {
    /// Parses a `TPMT_PUBLIC`.
    ///
    /// # Errors
    ///
    /// [`TpmDenial::AttestationKeyMalformed`], [`TpmDenial::AttestationKeyAttributes`],
    /// [`TpmDenial::AttestationKeyPolicy`], [`TpmDenial::AttestationKeyAlgorithm`],
    /// [`TpmDenial::TpmKeyWeak`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, TpmDenial> {
        let malformed = TpmDenial::AttestationKeyMalformed;
        let public: TpmtPublic = exactly(bytes)
            .filter(|public| encode(public).is_some_and(|encoded| encoded == bytes))
            .ok_or(malformed("it is not exactly one TPMT_PUBLIC"))?;
        let attributes = public.object_attributes.bits();
        if attributes != ATTRIBUTES {
            return Err(TpmDenial::AttestationKeyAttributes(attributes));
        }
        let policy: &[u8] = &public.auth_policy;
        ensure!(policy.is_empty(), TpmDenial::AttestationKeyPolicy);
        let key = if is_ecdsa(&public.parameters) {
            point(&public.unique, 32).and_then(|point| Key::p256(&point))
        } else if is_rsassa(&public.parameters) {
            modulus(&public.unique)
        } else {
            return Err(TpmDenial::AttestationKeyAlgorithm);
        };
        let key = key.map_err(malformed)?;
        ensure!(!key.is_weak(), TpmDenial::TpmKeyWeak("attestation key"));
        let algorithm = [NAMED_BY_SHA_256, NAMED_BY_SHA_384]
            .into_iter()
            .find(|(identifier, _)| *identifier == public.name_alg)
            .ok_or(TpmDenial::AttestationKeyAlgorithm)?;
        Ok(Self {
            key,
            name: Name::of(algorithm, bytes),
        })
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the Name of the key.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }
}

const SHA_256: TpmuAsymScheme = TpmuAsymScheme::Hash(TpmsSchemeHash {
    hash_alg: TpmAlgId::Sha256,
});

/// Part 2, `TPMS_ECC_PARMS`: ECDSA with SHA-256 on P-256.
fn is_ecdsa(parameters: &TpmuPublicParms) -> bool {
    let ecdsa = TpmsEccParms {
        symmetric: no_symmetric(),
        scheme: TpmtEccScheme {
            scheme: TpmAlgId::Ecdsa,
            details: SHA_256,
        },
        curve_id: TpmEccCurve::NistP256,
        kdf: TpmtKdfScheme::default(),
    };
    matches!(parameters, TpmuPublicParms::Ecc(parameters) if *parameters == ecdsa)
}

/// Part 2, `TPMS_RSA_PARMS`: RSASSA (PKCS #1 v1.5) with SHA-256, 2048 bits.
fn is_rsassa(parameters: &TpmuPublicParms) -> bool {
    let rsassa = TpmsRsaParms {
        symmetric: no_symmetric(),
        scheme: TpmtRsaScheme {
            scheme: TpmAlgId::Rsassa,
            details: SHA_256,
        },
        key_bits: TpmUint16::new(2048),
        exponent: TpmUint32::new(0),
    };
    matches!(parameters, TpmuPublicParms::Rsa(parameters) if *parameters == rsassa)
}

fn no_symmetric() -> TpmtSymDef {
    TpmtSymDef {
        algorithm: TpmAlgId::Null,
        ..TpmtSymDef::default()
    }
}
