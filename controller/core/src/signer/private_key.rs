//! Private keys that tenants write.
//!
//! A library that parses a key also checks the key's numbers. This check takes seconds if the numbers are long, so any
//! user who can write a Secret could keep the controller busy. Therefore the controller first checks the type of a key
//! and the lengths of its numbers, and a library parses only a [`PrivateKey`].

use kubelet_attestation::ensure;
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier, OctetStringRef};
use x509_cert::der::{self, Decode as _, Reader as _, SliceReader, Tag, TagNumber, Tagged as _};
use zeroize::Zeroizing;

use super::algorithm::{RSA_MODULUS_LEN, SignatureAlgorithm};

/// The maximum length of a key in DER, in bytes. A 4096-bit RSA key is 2,400 bytes long.
const MAX_DER_LEN: usize = 4096;

/// The minimum length of an RSA modulus, in bits.
const MIN_RSA_BITS: usize = *RSA_MODULUS_LEN.start() * 8;
const MAX_RSA_BITS: usize = *RSA_MODULUS_LEN.end() * 8;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ECDSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// The tag of the curve in a SEC1 key: context-specific, constructed, number 0.
const CURVE: Tag = Tag::ContextSpecific {
    constructed: true,
    number: TagNumber(0),
};

/// The numbers of an RSA key after its version and modulus (RFC 8017 appendix A.1.2).
const RSA_NUMBERS: [&str; 7] = [
    "public exponent",
    "private exponent",
    "first prime",
    "second prime",
    "first CRT exponent",
    "second CRT exponent",
    "CRT coefficient",
];

/// A private key that cannot be used.
///
/// `Display` does not contain any part of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPrivateKey {
    /// The key is longer than any supported key.
    #[error(
        "the key is longer than {} bytes: create an RSA key of 2048 to 4096 bits or an ECDSA key",
        MAX_DER_LEN
    )]
    TooLong,
    /// The content of the PEM block does not have the format in the block's label.
    #[error(
        "the content of the PEM block is not a key in the format of its label: export the key again, for example with \
         \"openssl pkey\""
    )]
    Malformed,
    /// The key type or the curve is not supported.
    #[error(
        "the key type or the curve is not supported: create an RSA key of 2048 to 4096 bits, or an ECDSA key on P-256, \
         P-384 or P-521"
    )]
    Kind,
    /// The modulus of an RSA key is too short or too long. The number is its length in bits.
    #[error("the RSA key has {0} bits: create a key of 2048 to 4096 bits")]
    RsaBits(usize),
    /// A number of an RSA key is longer than the modulus.
    #[error("the {0} of the RSA key is longer than its modulus: create another key")]
    RsaNumber(&'static str),
    /// The cryptographic library rejects the key.
    #[error("the numbers in the key are inconsistent: create another key")]
    Inconsistent,
}

/// The format of a private key, from the label of its PEM block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "no other form is read")]
pub enum PrivateKeyForm {
    /// PKCS#8, for every key type.
    Pkcs8,
    /// PKCS#1, for RSA.
    Pkcs1,
    /// SEC1, for ECDSA.
    Sec1,
}

/// The type of a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrivateKeyKind {
    Rsa,
    /// ECDSA, with the signature algorithm of the curve.
    Ecdsa(SignatureAlgorithm),
    Ed25519,
}

/// A private key of a supported kind, whose numbers are short enough for a library to parse.
///
/// The consistency of the numbers is not checked. `Debug` does not show the key, and its memory is zeroed on drop.
#[derive(derive_more::Debug)]
#[debug("PrivateKey")]
pub struct PrivateKey {
    form: PrivateKeyForm,
    kind: PrivateKeyKind,
    der: Zeroizing<Vec<u8>>,
}

impl PrivateKeyForm {
    /// Returns the format for this PEM label.
    pub(super) fn of_label(label: &str) -> Option<Self> {
        let all = [Self::Pkcs8, Self::Pkcs1, Self::Sec1];
        all.into_iter().find(|form| form.label() == label)
    }

    fn label(self) -> &'static str {
        match self {
            Self::Pkcs8 => "PRIVATE KEY",
            Self::Pkcs1 => "RSA PRIVATE KEY",
            Self::Sec1 => "EC PRIVATE KEY",
        }
    }
}

impl PrivateKey {
    /// Checks the type of the key and the lengths of its numbers, without arithmetic.
    ///
    /// # Errors
    ///
    /// Returns the first reason to reject the key.
    pub fn new(form: PrivateKeyForm, der: Zeroizing<Vec<u8>>) -> Result<Self, InvalidPrivateKey> {
        ensure!(der.len() <= MAX_DER_LEN, InvalidPrivateKey::TooLong);
        let kind = match form {
            PrivateKeyForm::Pkcs8 => {
                let info = Pkcs8::read(&der).map_err(|_| InvalidPrivateKey::Malformed)?;
                info.kind()?
            }
            PrivateKeyForm::Pkcs1 => {
                check_rsa(&der)?;
                PrivateKeyKind::Rsa
            }
            PrivateKeyForm::Sec1 => {
                let curve = curve_of_sec1(&der).map_err(|_| InvalidPrivateKey::Malformed)?;
                ecdsa(curve)?
            }
        };
        Ok(Self { form, kind, der })
    }

    pub(super) fn form(&self) -> PrivateKeyForm {
        self.form
    }

    pub(super) fn kind(&self) -> PrivateKeyKind {
        self.kind
    }

    pub(super) fn der(&self) -> &[u8] {
        &self.der
    }

    /// The key as a single PEM block.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let block = pem::Pem::new(self.form.label(), self.der.as_slice());
        let text = Zeroizing::new(pem::encode(&block));
        drop(Zeroizing::new(block.into_contents()));
        text
    }
}

/// A key in PKCS#8 (RFC 5958).
struct Pkcs8<'a> {
    algorithm: ObjectIdentifier,
    parameters: Option<AnyRef<'a>>,
    key: &'a [u8],
}

impl<'a> Pkcs8<'a> {
    fn read(der: &'a [u8]) -> der::Result<Self> {
        AnyRef::from_der(der)?.sequence(|info| {
            number(info)?;
            let algorithm = AnyRef::decode(info)?;
            let (algorithm, parameters) = algorithm.sequence(|parts| {
                let algorithm = ObjectIdentifier::decode(parts)?;
                let parameters = Option::<AnyRef<'a>>::decode(parts)?;
                Ok::<_, der::Error>((algorithm, parameters))
            })?;
            let key = <&OctetStringRef>::decode(info)?.as_bytes();
            // The optional attributes and the public key follow.
            while !info.is_finished() {
                AnyRef::decode(info)?;
            }
            Ok(Self {
                algorithm,
                parameters,
                key,
            })
        })
    }

    fn kind(&self) -> Result<PrivateKeyKind, InvalidPrivateKey> {
        if self.algorithm == RSA {
            check_rsa(self.key)?;
            Ok(PrivateKeyKind::Rsa)
        } else if self.algorithm == ECDSA {
            ecdsa(self.parameters)
        } else if self.algorithm == ED25519 {
            Ok(PrivateKeyKind::Ed25519)
        } else {
            Err(InvalidPrivateKey::Kind)
        }
    }
}

/// Checks the lengths of the numbers in an RSA key in PKCS#1.
fn check_rsa(der: &[u8]) -> Result<(), InvalidPrivateKey> {
    let numbers = numbers(der).map_err(|_| InvalidPrivateKey::Malformed)?;
    let [_version, modulus, others @ ..] = numbers.as_slice() else {
        return Err(InvalidPrivateKey::Malformed);
    };
    // A different count means that the key has more than two primes, which is not supported.
    ensure!(
        others.len() == RSA_NUMBERS.len(),
        InvalidPrivateKey::Malformed
    );
    let modulus = bits(modulus);
    ensure!(
        (MIN_RSA_BITS..=MAX_RSA_BITS).contains(&modulus),
        InvalidPrivateKey::RsaBits(modulus)
    );
    for (number, name) in others.iter().zip(RSA_NUMBERS) {
        ensure!(bits(number) <= modulus, InvalidPrivateKey::RsaNumber(name));
    }
    Ok(())
}

/// Parses a sequence that contains only numbers, and returns the numbers.
fn numbers(der: &[u8]) -> der::Result<Vec<&[u8]>> {
    AnyRef::from_der(der)?.sequence(|elements| {
        let mut numbers = Vec::new();
        while !elements.is_finished() {
            numbers.push(number(elements)?);
        }
        Ok(numbers)
    })
}

fn number<'a>(elements: &mut SliceReader<'a>) -> der::Result<&'a [u8]> {
    let number = AnyRef::decode(elements)?;
    number.tag().assert_eq(Tag::Integer)?;
    Ok(number.value())
}

/// The length of a number in bits, regardless of its sign.
fn bits(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    let digits = number.len().saturating_sub(zeros);
    let first = number.get(zeros).map_or(0, |byte| byte.leading_zeros());
    let first = usize::try_from(first).unwrap_or_default();
    (digits * 8).saturating_sub(first)
}

/// Returns the curve of an ECDSA key in SEC1 (RFC 5915). `None` if the key does not contain the curve.
fn curve_of_sec1(der: &[u8]) -> der::Result<Option<AnyRef<'_>>> {
    AnyRef::from_der(der)?.sequence(|elements| {
        number(elements)?;
        <&OctetStringRef>::decode(elements)?;
        let mut curve = None;
        while !elements.is_finished() {
            let element = AnyRef::decode(elements)?;
            if element.tag() == CURVE {
                curve = Some(AnyRef::from_der(element.value())?);
            }
        }
        Ok(curve)
    })
}

/// Returns the type of an ECDSA key on this curve. Only named curves are accepted. Explicit curve parameters are not
/// read.
fn ecdsa(curve: Option<AnyRef<'_>>) -> Result<PrivateKeyKind, InvalidPrivateKey> {
    let name = curve.and_then(|curve| curve.decode_as::<ObjectIdentifier>().ok());
    let algorithm = name.and_then(|name| SignatureAlgorithm::of_curve(&name.to_string()));
    let algorithm = algorithm.ok_or(InvalidPrivateKey::Kind)?;
    Ok(PrivateKeyKind::Ecdsa(algorithm))
}

/// Counts the keys that a library parses, for tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use std::cell::Cell;

    thread_local! {
        static PARSED: Cell<usize> = const { Cell::new(0) };
    }

    /// The number of library calls that this thread made during `run` to parse private keys.
    pub fn parsed_keys(run: impl FnOnce()) -> usize {
        let before = PARSED.get();
        run();
        PARSED.get() - before
    }

    pub(in crate::signer) fn count() {
        PARSED.set(PARSED.get() + 1);
    }
}
