//! The CA key.

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use kubelet_attestation::ensure;
use zeroize::Zeroizing;

use super::algorithm::SignatureAlgorithm;
use super::ca::{CaCertificate, InvalidCa};
use super::private_key::{InvalidPrivateKey, PrivateKey, PrivateKeyForm, PrivateKeyKind};

const CURVES: [(&EcdsaSigningAlgorithm, SignatureAlgorithm); 3] = [
    (
        &ECDSA_P256_SHA256_ASN1_SIGNING,
        SignatureAlgorithm::EcdsaP256Sha256,
    ),
    (
        &ECDSA_P384_SHA384_ASN1_SIGNING,
        SignatureAlgorithm::EcdsaP384Sha384,
    ),
    (
        &ECDSA_P521_SHA512_ASN1_SIGNING,
        SignatureAlgorithm::EcdsaP521Sha512,
    ),
];

/// A key that signs certificates. The type does not implement `Debug`, and the library zeroes its memory on drop.
pub(super) enum CaKey {
    Ecdsa(EcdsaKeyPair, SignatureAlgorithm),
    Rsa(RsaKeyPair),
}

impl CaKey {
    /// Parses the key, which must match `ca`.
    pub(super) fn from_pem(text: &[u8], ca: &CaCertificate) -> Result<Self, InvalidCa> {
        let key = Self::read(text)?;
        if key.public_key() == ca.public_key {
            Ok(key)
        } else {
            Err(InvalidCa::KeyMismatch)
        }
    }

    /// Generates a random key, which does not match any CA certificate.
    pub(super) fn random() -> Result<Self, Unspecified> {
        let [(algorithm, signature), ..] = CURVES;
        let key = EcdsaKeyPair::generate(algorithm)?;
        Ok(Self::Ecdsa(key, signature))
    }

    fn read(text: &[u8]) -> Result<Self, InvalidCa> {
        let mut keys = pem::parse_many(text)
            .map_err(|_| InvalidCa::KeyForm)?
            .into_iter()
            // `openssl ecparam -genkey` writes the curve in a separate block before the key.
            .filter(|block| block.tag() != "EC PARAMETERS");
        let (Some(block), None) = (keys.next(), keys.next()) else {
            return Err(InvalidCa::KeyForm);
        };
        ensure!(block.headers().iter().next().is_none(), InvalidCa::KeyForm);
        let form = PrivateKeyForm::of_label(block.tag());
        let der = Zeroizing::new(block.into_contents());
        let key = PrivateKey::new(form.ok_or(InvalidCa::KeyForm)?, der)?;
        Self::parse(&key)
    }

    /// Parses the key with a single call to the library.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn parse(key: &PrivateKey) -> Result<Self, InvalidCa> {
        let (der, form) = (key.der(), key.form());
        let signature = match key.kind() {
            PrivateKeyKind::Ed25519 => return Err(InvalidCa::KeyKind),
            PrivateKeyKind::Rsa => None,
            PrivateKeyKind::Ecdsa(signature) => Some(signature),
        };
        #[cfg(any(test, feature = "testing"))]
        super::private_key::testing::count();
        let parsed = match signature {
            None if form == PrivateKeyForm::Pkcs1 => RsaKeyPair::from_der(der).map(Self::Rsa),
            None => RsaKeyPair::from_pkcs8(der).map(Self::Rsa),
            Some(signature) => {
                let mut curves = CURVES.into_iter();
                let curve = curves.find(|(_, of_curve)| *of_curve == signature);
                let (algorithm, _) = curve.ok_or(InvalidCa::KeyKind)?;
                let key = EcdsaKeyPair::from_private_key_der(algorithm, der);
                key.map(|key| Self::Ecdsa(key, signature))
            }
        };
        parsed.map_err(|_| InvalidPrivateKey::Inconsistent.into())
    }

    fn public_key(&self) -> &[u8] {
        match self {
            Self::Ecdsa(key, _) => key.public_key().as_ref(),
            Self::Rsa(key) => key.public_key().as_ref(),
        }
    }

    /// The signature algorithm that the key uses.
    pub(super) fn algorithm(&self) -> SignatureAlgorithm {
        match self {
            Self::Ecdsa(_, algorithm) => *algorithm,
            Self::Rsa(_) => SignatureAlgorithm::RsaPkcs1Sha256,
        }
    }

    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let random = SystemRandom::new();
        match self {
            Self::Ecdsa(key, _) => Ok(key.sign(&random, message)?.as_ref().to_vec()),
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)?;
                Ok(signature)
            }
        }
    }
}
