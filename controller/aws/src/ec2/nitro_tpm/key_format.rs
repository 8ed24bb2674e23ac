//! A public endorsement key as EC2 returns it: base64 of the DER of a `SubjectPublicKeyInfo`.

use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rsa::PublicEncryptingKey;
use aws_lc_rs::signature::{ECDSA_P384_SHA384_ASN1, ParsedPublicKey};
use aws_sdk_ec2::types::EkPubKeyType;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::ensure;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::verifier::platform::KeyKind;

/// The maximum length of a key. An RSA key is 392 characters long in base64.
const MAX_LEN: usize = 4096;

/// The error in an answer.
pub(in crate::ec2) type NoKey = &'static str;

/// Returns EC2's name for an endorsement key type. `None` if EC2 does not support this type.
pub(in crate::ec2) fn key_type(kind: KeyKind) -> Option<EkPubKeyType> {
    match kind {
        KeyKind::Rsa2048 => Some(EkPubKeyType::Rsa2048),
        KeyKind::P384 => Some(EkPubKeyType::EccSecP384),
        KeyKind::P256 => None,
    }
}

/// Returns the digest of a key of this type. The key is encoded again, so that each key has exactly one digest.
pub(in crate::ec2) fn read(key_type: &EkPubKeyType, value: &str) -> Result<KeyDigest, NoKey> {
    ensure!(value.len() <= MAX_LEN, "it is too long for a key");
    let spki = STANDARD.decode(value).map_err(|_| "it is not base64")?;
    let encoded = encode_again(key_type, &spki).ok_or("it does not have the requested key type")?;
    if encoded.as_ref() != spki {
        return Err("it is not the canonical DER encoding of a key");
    }
    Ok(KeyDigest::of(&spki))
}

/// Returns the key in these bytes, encoded again.
fn encode_again(key_type: &EkPubKeyType, spki: &[u8]) -> Option<PublicKeyX509Der<'static>> {
    if *key_type == EkPubKeyType::Rsa2048 {
        let key = PublicEncryptingKey::from_der(spki).ok()?;
        (key.key_size_bits() == 2048).then(|| key.as_der().ok())?
    } else {
        let key = ParsedPublicKey::new(&ECDSA_P384_SHA384_ASN1, spki).ok()?;
        key.as_der().ok()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PublicKeyData as _};

    use super::*;

    fn p384() -> Vec<u8> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        key.subject_public_key_info()
    }

    fn rsa(size: aws_lc_rs::rsa::KeySize) -> Vec<u8> {
        let key = aws_lc_rs::rsa::PrivateDecryptingKey::generate(size).unwrap();
        key.public_key().as_der().unwrap().as_ref().to_vec()
    }

    #[test]
    fn the_digest_of_each_kind_of_key_is_computed_over_its_spki() {
        let (p384, rsa) = (p384(), rsa(aws_lc_rs::rsa::KeySize::Rsa2048));
        for (kind, other, spki) in [
            (EkPubKeyType::EccSecP384, EkPubKeyType::Rsa2048, &p384),
            (EkPubKeyType::Rsa2048, EkPubKeyType::EccSecP384, &rsa),
        ] {
            let value = STANDARD.encode(spki);

            assert_eq!(read(&kind, &value), Ok(KeyDigest::of(spki)));
            assert_eq!(
                read(&other, &value),
                Err("it does not have the requested key type")
            );
        }
    }

    #[test]
    fn a_key_of_the_wrong_kind_or_encoding_is_refused() {
        let good = p384();
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut spki = good.clone();
            change(&mut spki);
            STANDARD.encode(spki)
        };
        let point = good.len() - 97;
        let p256 = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        for (kind, value, why) in [
            (
                EkPubKeyType::EccSecP384,
                String::new(),
                "it does not have the requested key type",
            ),
            (EkPubKeyType::EccSecP384, "?".to_owned(), "it is not base64"),
            (
                EkPubKeyType::EccSecP384,
                "A".repeat(4097),
                "it is too long for a key",
            ),
            (
                EkPubKeyType::EccSecP384,
                with(&|spki| spki.push(0)),
                "it is not the canonical DER encoding of a key",
            ),
            (
                EkPubKeyType::EccSecP384,
                with(&|spki| *spki.last_mut().unwrap() ^= 1),
                "it does not have the requested key type",
            ),
            // A bare point is a key, but not a SubjectPublicKeyInfo.
            (
                EkPubKeyType::EccSecP384,
                with(&|spki| drop(spki.drain(..point))),
                "it is not the canonical DER encoding of a key",
            ),
            (
                EkPubKeyType::EccSecP384,
                STANDARD.encode(p256.subject_public_key_info()),
                "it does not have the requested key type",
            ),
            (
                EkPubKeyType::Rsa2048,
                STANDARD.encode(rsa(aws_lc_rs::rsa::KeySize::Rsa3072)),
                "it does not have the requested key type",
            ),
        ] {
            assert_eq!(read(&kind, &value), Err(why), "{value}");
        }
    }

    #[test]
    fn a_p256_key_has_no_ec2_key_type() {
        assert_eq!(key_type(KeyKind::P256), None);
    }
}
