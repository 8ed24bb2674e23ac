//! The key of a credential: ECDSA on P-256, in software, because client-go needs it as PEM.

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use x509_parser::asn1_rs::{Any, Class, FromDer as _, Tag};
use zeroize::Zeroizing;

use crate::failure::Invalid;
use crate::secret::Secret;

/// A private key in PEM, and its public half.
#[derive(Debug)]
pub struct PrivateKey {
    pem: Secret<String>,
    public: Vec<u8>,
}

const NOT_ONE_KEY: &str = "the text does not contain exactly one private key in PEM";

impl PrivateKey {
    /// Generates a key.
    pub fn generate() -> Result<Self, Invalid> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .map_err(|error| Invalid::new("cannot generate a P-256 key").because(&error))?;
        let key = Self {
            public: pair.der_bytes().to_vec(),
            pem: Secret::new(pair.serialize_pem()),
        };
        key.checked()
    }

    /// Returns this key if its private half matches its public half. [`PrivateKey::from_pem`] trusts the file, but a
    /// disk can corrupt it. The check is slow, because it computes a point on the curve.
    pub fn checked(self) -> Result<Self, Invalid> {
        if self.pair()?.der_bytes() == self.public {
            Ok(self)
        } else {
            Err(Invalid::new(
                "the private key does not match its public key",
            ))
        }
    }

    /// Parses a key in PKCS#8 or SEC 1.
    ///
    /// Uses the public half from the file if it is present (RFC 5915 section 3), and otherwise computes it. With the
    /// public half in the file, the plugin does not have to compute it at each start.
    pub fn from_pem(pem: Secret<String>) -> Result<Self, Invalid> {
        let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(pem.expose().as_bytes());
        let (Some(Ok((kind, der))), None) = (sections.next(), sections.next()) else {
            return Err(Invalid::new(NOT_ONE_KEY));
        };
        let der = Zeroizing::new(der);
        let public = match embedded_public_key(kind, &der) {
            Some(public) => public.to_vec(),
            None => KeyPair::from_pem(pem.expose())
                .map_err(|error| unreadable(&error))?
                .der_bytes()
                .to_vec(),
        };
        Ok(Self { pem, public })
    }

    /// The public key, as in the bit string of a `SubjectPublicKeyInfo`.
    pub fn public_bits(&self) -> &[u8] {
        &self.public
    }

    /// The key in PEM.
    pub fn pem(&self) -> &Secret<String> {
        &self.pem
    }

    /// Returns the key pair with which rcgen signs.
    pub fn pair(&self) -> Result<KeyPair, Invalid> {
        KeyPair::from_pem(self.pem.expose()).map_err(|error| unreadable(&error))
    }
}

/// Replaces the error of the PEM parser, because it quotes the invalid line, which can be a line of the key.
fn unreadable(error: &rcgen::Error) -> Invalid {
    if matches!(error, rcgen::Error::PemError(_)) {
        Invalid::new(NOT_ONE_KEY)
    } else {
        Invalid::new("cannot parse the private key").because(error)
    }
}

/// `publicKey [1] BIT STRING` of an `ECPrivateKey` (RFC 5915), bare or inside PKCS#8 (RFC 5208).
fn embedded_public_key(kind: SectionKind, der: &[u8]) -> Option<&[u8]> {
    let ec_private_key = if kind == SectionKind::PrivateKey {
        elements(content(der, Tag::Sequence)?)
            .find(|element| element.tag() == Tag::OctetString)?
            .data
    } else if kind == SectionKind::EcPrivateKey {
        der
    } else {
        return None;
    };
    let public = elements(content(ec_private_key, Tag::Sequence)?)
        .find(|element| element.class() == Class::ContextSpecific && element.tag() == Tag(1))?;
    match content(public.data, Tag::BitString)? {
        [0, bits @ ..] => Some(bits),
        _ => None,
    }
}

fn content(der: &[u8], tag: Tag) -> Option<&[u8]> {
    let element = elements(der).next()?;
    (element.tag() == tag).then_some(element.data)
}

fn elements(mut der: &[u8]) -> impl Iterator<Item = Any<'_>> {
    std::iter::from_fn(move || {
        let (rest, element) = Any::from_der(der).ok()?;
        der = rest;
        Some(element)
    })
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::errors::error_chain;

    use super::*;

    /// `openssl ecparam -name prime256v1 -genkey -noout`, then `openssl ec -no_public`.
    const WITHOUT_PUBLIC: &str = "-----BEGIN EC PRIVATE KEY-----\n\
        MDECAQEEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4foAoGCCqGSM49\n\
        AwEH\n\
        -----END EC PRIVATE KEY-----\n";

    #[test]
    fn a_key_is_read_with_its_embedded_public_key() {
        let key = PrivateKey::generate().unwrap();
        let read = PrivateKey::from_pem(Secret::new(key.pem().expose().clone())).unwrap();
        let der = pem_der(key.pem().expose());

        assert_eq!(
            embedded_public_key(SectionKind::PrivateKey, &der),
            Some(key.public_bits())
        );
        assert_eq!(read.public_bits(), key.public_bits());
        assert_eq!(key.public_bits().len(), 65);
    }

    #[test]
    fn a_missing_embedded_public_key_is_computed() {
        let der = pem_der(WITHOUT_PUBLIC);
        assert_eq!(embedded_public_key(SectionKind::EcPrivateKey, &der), None);

        let key = PrivateKey::from_pem(Secret::new(WITHOUT_PUBLIC.to_owned())).unwrap();

        assert_eq!(key.public_bits().len(), 65);
    }

    #[test]
    fn a_malformed_key_is_refused() {
        let key = PrivateKey::generate().unwrap();
        let twice = key.pem().expose().repeat(2);

        for text in ["", "key", &twice] {
            let error = PrivateKey::from_pem(Secret::new(text.to_owned())).unwrap_err();
            assert_eq!(error, Invalid::new(NOT_ONE_KEY));
        }
        let hollow = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let error = PrivateKey::from_pem(Secret::new(hollow.to_owned())).unwrap_err();
        assert!(
            error.to_string().contains("cannot parse the private key"),
            "{error}"
        );
    }

    #[test]
    fn an_error_about_a_damaged_key_does_not_contain_the_key() {
        let key = PrivateKey::generate().unwrap();
        for pem in [WITHOUT_PUBLIC, key.pem().expose()] {
            let first = pem.lines().nth(1).unwrap();
            // Strict PEM parsers interpret text before an empty line as a header.
            let damaged = pem.replace(first, &format!("{first}\n"));

            let read = PrivateKey::from_pem(Secret::new(damaged));
            let error = read.and_then(PrivateKey::checked).unwrap_err();

            let text = error_chain(&error);
            assert!(!text.contains(first), "{text}");
            assert_eq!(error, Invalid::new(NOT_ONE_KEY));
        }
    }

    fn pem_der(text: &str) -> Vec<u8> {
        let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(text.as_bytes());
        sections.next().unwrap().unwrap().1
    }
}
