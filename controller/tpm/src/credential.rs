//! `TPM2_MakeCredential` in software ("TPM 2.0 Library, Part 1: Architecture", 24 and annexes B.10 and C.6.4).

use aws_lc_rs::agreement::{
    self, ECDH_P256, ECDH_P384, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral,
};
use aws_lc_rs::cipher::{
    self, AES_128, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand::{self, SystemRandom};
use aws_lc_rs::rsa::{
    OAEP_SHA256_MGF1SHA256, OaepPublicEncryptingKey, PublicEncryptingKey, PublicKeyComponents,
};
use zeroize::Zeroizing;

use crate::kdf::{kdf_a, kdf_e};
use crate::public::{AttestationKey, EXPONENT, EndorsementKey, Key, coordinates};
use crate::structure::sized;

/// An encrypted secret that only the TPM with the endorsement key can decrypt, and only if this TPM also contains the
/// attestation key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    /// The buffer of a `TPM2B_ID_OBJECT`.
    pub(crate) blob: Vec<u8>,
    /// The buffer of a `TPM2B_ENCRYPTED_SECRET`.
    pub(crate) encrypted_secret: Vec<u8>,
}

/// The error if the system does not provide random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system did not provide random bytes for a challenge")]
pub(crate) struct NoCredential;

impl From<Unspecified> for NoCredential {
    fn from(_: Unspecified) -> Self {
        Self
    }
}

/// The algorithms that a template uses for the Name and for the symmetric key.
struct Suite {
    hmac: hmac::Algorithm,
    cipher: &'static cipher::Algorithm,
    key_bits: u32,
    digest_bits: u32,
}

/// The templates L-1 and L-2.
const LOW: Suite = Suite {
    hmac: hmac::HMAC_SHA256,
    cipher: &AES_128,
    key_bits: 128,
    digest_bits: 256,
};

/// The template H-3.
const HIGH: Suite = Suite {
    hmac: hmac::HMAC_SHA384,
    cipher: &AES_256,
    key_bits: 256,
    digest_bits: 384,
};

const IDENTITY: &[u8] = b"IDENTITY\0";

impl Credential {
    /// Encrypts `secret`.
    ///
    /// # Errors
    ///
    /// Returns an error if the system provides no random bytes. Invalid keys cannot occur, because earlier checks
    /// rejected them.
    pub(crate) fn make(
        endorsement: &EndorsementKey,
        attestation: &AttestationKey,
        secret: &[u8; 32],
    ) -> Result<Self, NoCredential> {
        let (suite, seed) = match endorsement.key() {
            Key::Rsa2048(modulus) => (LOW, Seed::for_rsa(modulus)?),
            Key::P256(point) => (LOW, Seed::for_ecc(&LOW, &ECDH_P256, point)?),
            Key::P384(point) => (HIGH, Seed::for_ecc(&HIGH, &ECDH_P384, point)?),
        };
        let name = attestation.name().as_bytes();
        let mut identity = sized(secret).ok_or(NoCredential)?;
        let key = kdf_a(suite.hmac, &seed.plain, b"STORAGE\0", name, suite.key_bits);
        let key = UnboundCipherKey::new(suite.cipher, &key.ok_or(NoCredential)?)?;
        // Part 1 specifies a zero IV. This is safe because the key is used only for this message.
        let zero = EncryptionContext::Iv128(FixedLength::from([0; 16]));
        EncryptingKey::cfb128(key)?.less_safe_encrypt(&mut identity, zero)?;

        let bits = suite.digest_bits;
        let key = kdf_a(suite.hmac, &seed.plain, b"INTEGRITY\0", &[], bits);
        let key = hmac::Key::new(suite.hmac, &key.ok_or(NoCredential)?);
        let mut mac = hmac::Context::with_key(&key);
        mac.update(&identity);
        mac.update(name);
        let mut blob = sized(mac.sign().as_ref()).ok_or(NoCredential)?;
        blob.extend_from_slice(&identity);
        Ok(Self {
            blob,
            encrypted_secret: seed.encrypted,
        })
    }
}

/// The seed for the keys of one credential, in plain text and encrypted for the endorsement key.
struct Seed {
    plain: Zeroizing<Vec<u8>>,
    encrypted: Vec<u8>,
}

impl Seed {
    fn for_rsa(modulus: &[u8]) -> Result<Self, NoCredential> {
        let mut plain = Zeroizing::new(vec![0; 32]);
        rand::fill(&mut plain)?;
        let components = PublicKeyComponents {
            n: modulus,
            e: EXPONENT.as_slice(),
        };
        let key: PublicEncryptingKey = components.try_into()?;
        let mut encrypted = vec![0; modulus.len()];
        OaepPublicEncryptingKey::new(key)?.encrypt(
            &OAEP_SHA256_MGF1SHA256,
            &plain,
            &mut encrypted,
            Some(IDENTITY),
        )?;
        Ok(Self { plain, encrypted })
    }

    fn for_ecc(
        suite: &Suite,
        curve: &'static agreement::Algorithm,
        endorsement: &[u8],
    ) -> Result<Self, NoCredential> {
        let ephemeral = EphemeralPrivateKey::generate(curve, &SystemRandom::new())?;
        let public = ephemeral.compute_public_key()?;
        let (x, y) = coordinates(public.as_ref()).ok_or(NoCredential)?;
        let (endorsement_x, _) = coordinates(endorsement).ok_or(NoCredential)?;
        let mut encrypted = sized(x).ok_or(NoCredential)?;
        encrypted.extend(sized(y).ok_or(NoCredential)?);
        let peer = UnparsedPublicKey::new(curve, endorsement);
        let plain = agree_ephemeral(ephemeral, peer, NoCredential, |agreed| {
            Ok(kdf_e(
                suite.hmac.digest_algorithm(),
                agreed,
                IDENTITY,
                x,
                endorsement_x,
            ))
        })?;
        Ok(Self { plain, encrypted })
    }
}
