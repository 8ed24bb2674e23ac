//! The encodings of endorsement keys and of the attestation key: templates, handles, and `SubjectPublicKeyInfo`
//! structures.
//!
//! Source: "TCG EK Credential Profile for TPM Family 2.0", version 2.5, B.3 to B.6.

use data_encoding::HEXLOWER;

use crate::protocol::EndorsementKey;

/// `TPMT_PUBLIC` up to `unique`: RSA, SHA-256, the attributes, `PolicyA`, AES-128-CFB, no scheme, 2048 bits, the
/// default exponent.
const L_1: &str = "0001000b000300b20020837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa\
                   0006008000430010080000000000";
/// `TPMT_PUBLIC` up to `unique`: ECC, SHA-256, the attributes, `PolicyA`, AES-128-CFB, no scheme, NIST P-256, no KDF.
const L_2: &str = "0023000b000300b20020837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa\
                   000600800043001000030010";
/// `TPMT_PUBLIC` up to `unique`: ECC, SHA-384, the attributes, `PolicyB`, AES-256-CFB, no scheme, NIST P-384, no KDF.
const H_3: &str = "0023000c000300f20030b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419ca\
                   cb47ba09699646150f9fc000f3f80e12000601000043001000040010";

/// The attestation key: ECC, SHA-256, `fixedTPM`, `fixedParent`, `sensitiveDataOrigin`, `userWithAuth`, `noDA`,
/// restricted and sign, no policy, ECDSA with SHA-256, NIST P-256, no KDF, and an empty `unique`. A TPM creates the
/// same key from this template each time.
const ATTESTATION: &str = "0023000b00050472000000100018000b0003001000000000";

/// The branches of `PolicyB` with SHA-384. Sessions satisfy `PolicyA` (B.6.4).
const POLICY_A: &str = "8bbf2266537c171cb56e403c4dc1d4b64f432611dc386e6f532050c3278c930e\
                        143e8bb1133824ccb431053871c6db53";
const POLICY_C: &str = "d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b455e261cffd217ad5\
                        b4947c2d73e63005eed2dc2b3593d165";

/// `rsaEncryption`, a modulus of 2048 bits (RFC 3279); the exponent 65537 follows it.
const SPKI_RSA_2048: &str = "30820122300d06092a864886f70d01010105000382010f003082010a0282010100";
const SPKI_EXPONENT: &str = "0203010001";
/// `id-ecPublicKey`, `secp256r1`, an uncompressed point (RFC 5480).
const SPKI_P256: &str = "3059301306072a8648ce3d020106082a8648ce3d03010703420004";
/// `id-ecPublicKey`, `secp384r1`, an uncompressed point.
const SPKI_P384: &str = "3076301006072a8648ce3d020106052b8104002203620004";

impl EndorsementKey {
    /// All key types, in order of preference.
    pub(crate) const ALL: [Self; 3] = [Self::EccP384, Self::EccP256, Self::Rsa2048];

    /// The key type of this `TPMT_PUBLIC`; `None` if it does not match a template.
    pub(crate) fn of(public: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| public.starts_with(&kind.fixed()))
    }

    /// The persistent handle of the key.
    pub(crate) fn persistent_handle(self) -> u32 {
        match self {
            Self::Rsa2048 => 0x8101_0001,
            Self::EccP256 => 0x8101_0002,
            Self::EccP384 => 0x8101_0016,
        }
    }

    /// The `TPMT_PUBLIC` of the template. The field `unique` is an input to the creation of the key. It contains zeros
    /// for a key of the low range, and is empty for a key of the high range.
    pub(crate) fn template(self) -> Vec<u8> {
        let zeros = |length: u8| [&[0, length][..], &vec![0; length.into()]].concat();
        let unique = match self {
            Self::Rsa2048 => [&[1, 0][..], &[0; 256]].concat(),
            Self::EccP256 => zeros(32).repeat(2),
            Self::EccP384 => zeros(0).repeat(2),
        };
        [self.fixed(), unique].concat()
    }

    /// The NV indices of the TPM-specific template for the key, and of the template's nonce. The profile defines them
    /// only for keys of the low range.
    pub(crate) fn template_indices(self) -> Option<[u32; 2]> {
        match self {
            Self::Rsa2048 => Some([0x01c0_0004, 0x01c0_0003]),
            Self::EccP256 => Some([0x01c0_000c, 0x01c0_000b]),
            Self::EccP384 => None,
        }
    }

    /// Returns the template for a TPM that stores the template `own` and this nonce (2.2.1.4 and 2.2.1.5.1). Ignores a
    /// stored template of a different kind, because controllers do not accept keys from such a template.
    pub(crate) fn own_template(self, own: Option<&[u8]>, nonce: Option<&[u8]>) -> Vec<u8> {
        let standard = self.template();
        let is_of_kind =
            |own: &&[u8]| own.len() == standard.len() && own.starts_with(&self.fixed());
        let mut template = own.filter(is_of_kind).unwrap_or(&standard).to_vec();
        // In `unique`, the nonce follows the length of the first number.
        let begin = self.fixed().len() + 2;
        let nonce = nonce.unwrap_or_default();
        let place = template.get_mut(begin..begin + nonce.len());
        if let Some(place) = place.filter(|_| nonce.len() <= self.nonce_len()) {
            place.copy_from_slice(nonce);
        }
        template
    }

    /// The maximum length of a nonce.
    fn nonce_len(self) -> usize {
        match self {
            Self::Rsa2048 => 256,
            Self::EccP256 => 32,
            Self::EccP384 => 0,
        }
    }

    /// The DER of the `SubjectPublicKeyInfo` of this `TPMT_PUBLIC`; `None` if the key does not have this type.
    pub(crate) fn spki(self, public: &[u8]) -> Option<Vec<u8>> {
        let unique = public.strip_prefix(self.fixed().as_slice())?;
        let (first, rest) = sized(unique)?;
        let parts = match self {
            Self::Rsa2048 => {
                let full = first.len() == 256 && first.first().is_some_and(|byte| byte >> 7 == 1);
                let parts = [bytes(SPKI_RSA_2048), first.to_vec(), bytes(SPKI_EXPONENT)];
                (full && rest.is_empty()).then_some(parts)?
            }
            Self::EccP256 => point(SPKI_P256, 32, first, rest)?,
            Self::EccP384 => point(SPKI_P384, 48, first, rest)?,
        };
        Some(parts.concat())
    }

    fn fixed(self) -> Vec<u8> {
        bytes(match self {
            Self::Rsa2048 => L_1,
            Self::EccP256 => L_2,
            Self::EccP384 => H_3,
        })
    }
}

/// The `TPMT_PUBLIC` of the attestation key's template.
pub(crate) fn attestation_template() -> Vec<u8> {
    bytes(ATTESTATION)
}

/// The branches of `PolicyB` that a session satisfies.
pub(crate) fn policy_b_branches() -> [Vec<u8>; 2] {
    [POLICY_A, POLICY_C].map(bytes)
}

fn bytes(hex: &str) -> Vec<u8> {
    // The input is always a constant in this file, and the tests decode all constants, so the default is never used.
    HEXLOWER.decode(hex.as_bytes()).unwrap_or_default()
}

/// The content of a sized buffer, and the bytes after it.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

fn point(prefix: &str, length: usize, x: &[u8], rest: &[u8]) -> Option<[Vec<u8>; 3]> {
    let (y, rest) = sized(rest)?;
    let parts = [bytes(prefix), padded(x, length)?, padded(y, length)?];
    rest.is_empty().then_some(parts)
}

/// The number, padded to `length` with leading zeros, which a TPM is allowed to omit.
fn padded(number: &[u8], length: usize) -> Option<Vec<u8>> {
    let missing = length.checked_sub(number.len())?;
    Some([&vec![0; missing], number].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: EndorsementKey, unique: &[&[u8]]) -> Vec<u8> {
        let parts = unique.iter().map(|part| {
            let length = u16::try_from(part.len()).unwrap();
            [&length.to_be_bytes()[..], part].concat()
        });
        [kind.fixed()]
            .into_iter()
            .chain(parts)
            .collect::<Vec<_>>()
            .concat()
    }

    #[test]
    fn each_endorsement_template_is_recognized_by_its_kind() {
        for (kind, length) in [
            (EndorsementKey::Rsa2048, 314),
            (EndorsementKey::EccP256, 122),
            (EndorsementKey::EccP384, 74),
        ] {
            assert_eq!(kind.template().len(), length);
            assert_eq!(EndorsementKey::of(&kind.template()), Some(kind));
        }
        assert_eq!(attestation_template().len(), 24);
        assert_eq!(policy_b_branches().map(|branch| branch.len()), [48, 48]);
        assert_eq!(EndorsementKey::of(&attestation_template()), None);
        let mut other = EndorsementKey::EccP256.template();
        other[7] ^= 1;
        assert_eq!(EndorsementKey::of(&other), None);
    }

    #[test]
    fn an_endorsement_template_uses_the_nonce_and_ignores_other_kinds() {
        for kind in [EndorsementKey::Rsa2048, EndorsementKey::EccP256] {
            let standard = kind.template();
            let begin = kind.fixed().len() + 2;
            let mut own = standard.clone();
            own[begin + 1] = 7;
            let mut with_nonce = own.clone();
            with_nonce[begin..begin + 3].copy_from_slice(&[1, 2, 3]);

            assert_eq!(kind.own_template(None, None), standard);
            assert_eq!(kind.own_template(Some(&own), None), own);
            assert_eq!(kind.own_template(Some(&own), Some(&[1, 2, 3])), with_nonce);
            let long = vec![1; kind.nonce_len() + 1];
            assert_eq!(kind.own_template(None, Some(&long)), standard);
            let mut foreign = own.clone();
            foreign[7] ^= 1;
            for foreign in [&foreign[..], &own[..own.len() - 1], &[0xff; 400]] {
                assert_eq!(kind.own_template(Some(foreign), None), standard);
            }
        }
    }

    #[test]
    fn a_short_coordinate_is_padded_with_zeros() {
        let kind = EndorsementKey::EccP256;
        let short = kind.spki(&key(kind, &[&[7; 31], &[8; 32]])).unwrap();
        let whole = [&[0][..], &[7; 31]].concat();

        assert_eq!(short, kind.spki(&key(kind, &[&whole, &[8; 32]])).unwrap());
        assert_eq!(short.len(), 91);
        assert_eq!(kind.spki(&key(kind, &[&[7; 33], &[8; 32]])), None);
        assert_eq!(kind.spki(&key(kind, &[&[7; 32], &[8; 32], &[]])), None);
        assert_eq!(kind.spki(&key(kind, &[&[7; 32]])), None);
        let kind = EndorsementKey::EccP384;
        let spki = kind.spki(&key(kind, &[&[7; 48], &[8; 1]])).unwrap();
        assert_eq!(spki.len(), 120);
    }

    #[test]
    fn an_endorsement_modulus_without_2048_bits_is_refused() {
        let kind = EndorsementKey::Rsa2048;

        assert_eq!(kind.spki(&key(kind, &[&[0x80; 256]])).unwrap().len(), 294);
        assert_eq!(kind.spki(&key(kind, &[&[0x7f; 256]])), None);
        assert_eq!(kind.spki(&key(kind, &[&[0x80; 255]])), None);
    }
}
