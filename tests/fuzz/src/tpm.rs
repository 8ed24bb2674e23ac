//! Targets for the parsers in `node-attestation-tpm`: TPM structures and endorsement key certificates.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::SystemTime;

use kubelet_attestation::evidence::tpm::{Bank, Quote, Registers};
use kubelet_authenticator_test_support::clock;
use kubelet_authenticator_test_support::ek_ca::{EkCa, EkContents, Intermediates};
use kubelet_authenticator_test_support::tpm_machine::{SoftwareKey, forged_quote};
use node_attestation_tpm::testing::{
    Certificates, PublicKey, attest_again, attestation_key, endorsement_key, quote, signature_again,
};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PublicKeyData as _};
use sha2::{Digest as _, Sha256, Sha384};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::Outcome;

/// The attributes of a valid attestation key.
const ATTRIBUTES: u32 = 0x0005_0472;

/// A software key with the attributes of a TPM key. It signs any data.
static FORGER: LazyLock<SoftwareKey> = LazyLock::new(SoftwareKey::generate);

/// The banks of quotes.
const BANKS: [Bank; 2] = [Bank::Sha256, Bank::Sha384];

/// The qualifying data of quotes.
const DATA: [u8; 32] = [7; 32];

fn registers(bank: Bank) -> Registers {
    let digests = [(0, 1), (9, 2), (23, 3)];
    let digests = digests.map(|(number, byte)| (number, vec![byte; bank.digest_len()]));
    Registers::of_bank(bank, digests.into()).unwrap()
}

/// Parses the `TPMT_PUBLIC` of an attestation key: the key's Name covers every byte of the structure.
pub fn attestation_public(input: &[u8]) -> Outcome {
    let Ok(key) = attestation_key(input) else {
        return Outcome::Refused;
    };
    assert_named(&key, input);
    Outcome::Accepted
}

/// Signing keys on both curves, and an RSA key.
pub fn attestation_public_seeds() -> Vec<Vec<u8>> {
    // RSASSA with SHA-256, 2048 bits and the usual exponent.
    let parameters = [0, 0x10, 0, 0x14, 0, 0x0b, 8, 0, 0, 0, 0, 0];
    let rsa = [
        &[0, 1, 0, 0x0b][..],
        &ATTRIBUTES.to_be_bytes(),
        &[0, 0],
        &parameters,
        &sized(&modulus()),
    ];
    vec![FORGER.public(ATTRIBUTES), rsa.concat()]
}

/// Parses the `TPMT_PUBLIC` of an endorsement key: the key's Name covers every byte of the structure.
pub fn endorsement_public(input: &[u8]) -> Outcome {
    let Ok(key) = endorsement_key(input) else {
        return Outcome::Refused;
    };
    assert_named(&key, input);
    Outcome::Accepted
}

/// A key of each template.
pub fn endorsement_public_seeds() -> Vec<Vec<u8>> {
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    vec![
        template(&Template::P256(MAKER.key.der_bytes())),
        template(&Template::P384(p384.der_bytes())),
        template(&Template::Rsa(&modulus())),
    ]
}

fn assert_named(key: &PublicKey, public_area: &[u8]) {
    let of_sha256 = [&[0, 0x0b][..], &Sha256::digest(public_area)].concat();
    let of_sha384 = [&[0, 0x0c][..], &Sha384::digest(public_area)].concat();
    assert!(key.name == of_sha256 || key.name == of_sha384);
    let (rest, spki) = SubjectPublicKeyInfo::from_der(&key.spki).unwrap();
    assert!(rest.is_empty() && spki.parsed().is_ok());
}

/// Parses a `TPMS_ATTEST` with a valid signature over any content. An accepted structure has one encoding, and covers
/// these registers.
pub fn attest(input: &[u8]) -> Outcome {
    let again = attest_again(input);
    if let Some(again) = &again {
        assert_eq!(again, input);
    }
    let signature = FORGER.sign(input);
    let verified = BANKS
        .into_iter()
        .find_map(|bank| verified(input.to_vec(), signature.clone(), bank));
    match verified {
        Some(verified) => {
            assert_eq!(verified, registers(verified.bank()));
            assert!(again.is_some());
            Outcome::Accepted
        }
        None => Outcome::Refused,
    }
}

/// A quote over each bank.
pub fn attest_seeds() -> Vec<Vec<u8>> {
    BANKS.map(forged).into()
}

/// Checks that a `TPMT_SIGNATURE` over a quote has exactly one encoding.
pub fn signature(input: &[u8]) -> Outcome {
    if let Some(again) = signature_again(input) {
        assert_eq!(again, input);
    }
    Outcome::of(verified(forged(Bank::Sha256), input.to_vec(), Bank::Sha256).is_some())
}

/// Two signatures over the quote.
pub fn signature_seeds() -> Vec<Vec<u8>> {
    let forged = forged(Bank::Sha256);
    vec![FORGER.sign(&forged), FORGER.sign(&forged)]
}

fn forged(bank: Bank) -> Vec<u8> {
    let registers = registers(bank);
    let digests: BTreeMap<u8, &[u8]> = registers.iter().collect();
    forged_quote(&FORGER.public(ATTRIBUTES), &DATA, &digests)
}

fn verified(attest: Vec<u8>, signature: Vec<u8>, bank: Bank) -> Option<Registers> {
    let evidence = Quote {
        attest,
        signature,
        registers: registers(bank),
    };
    quote(&FORGER.public(ATTRIBUTES), evidence, DATA).ok()
}

/// A TPM manufacturer, and a TPM from this manufacturer.
struct Maker {
    ca: EkCa,
    trusted: Certificates,
    key: KeyPair,
    certificate: Vec<u8>,
    now: SystemTime,
}

static MAKER: LazyLock<Maker> = LazyLock::new(|| {
    let ca = EkCa::with_intermediates("TPM maker", Intermediates::Good(2));
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    Maker {
        trusted: Certificates::of(&[ca.root_pem().to_owned()]).unwrap(),
        certificate: ca.certify(&key.subject_public_key_info(), &EkContents::good()),
        now: clock::now(),
        key,
        ca,
    }
});

impl Maker {
    fn accepts(&self, certificate: &[u8], intermediates: &[Vec<u8>]) -> bool {
        let public = template(&Template::P256(self.key.der_bytes()));
        let required = self
            .trusted
            .require(certificate, intermediates, &public, self.now);
        required.is_ok()
    }
}

/// Parses the certificate of an endorsement key: the vendor's signature covers the signed part of an accepted
/// certificate.
pub fn endorsement_certificate(input: &[u8]) -> Outcome {
    if !MAKER.accepts(input, MAKER.ca.intermediates()) {
        return Outcome::Refused;
    }
    assert_eq!(signed(input), signed(&MAKER.certificate));
    Outcome::Accepted
}

/// The certificate, and the same certificate with the padding from a TPM's memory.
pub fn endorsement_certificate_seeds() -> Vec<Vec<u8>> {
    let padded = [&MAKER.certificate[..], &[0xff; 16]].concat();
    vec![MAKER.certificate.clone(), padded]
}

/// Parses the certificate of an intermediate CA between a TPM and its manufacturer's root CA.
pub fn intermediate_certificate(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::Refused;
    for place in 0..MAKER.ca.intermediates().len() {
        let mut intermediates = MAKER.ca.intermediates().to_vec();
        let good = std::mem::replace(&mut intermediates[place], input.to_vec());
        if MAKER.accepts(&MAKER.certificate, &intermediates) {
            assert_eq!(signed(input), signed(&good));
            outcome = Outcome::Accepted;
        }
    }
    outcome
}

/// Both authorities.
pub fn intermediate_certificate_seeds() -> Vec<Vec<u8>> {
    MAKER.ca.intermediates().to_vec()
}

/// The bytes that the signature of a certificate covers.
fn signed(certificate: &[u8]) -> Vec<u8> {
    let (_, certificate) = X509Certificate::from_der(certificate).unwrap();
    certificate.tbs_certificate.as_ref().to_vec()
}

/// The key for a template in "TCG EK Credential Profile", 2.5, Annex B: a point or a modulus.
enum Template<'a> {
    P256(&'a [u8]),
    P384(&'a [u8]),
    Rsa(&'a [u8]),
}

/// `TPMT_PUBLIC` of an endorsement key.
fn template(template: &Template<'_>) -> Vec<u8> {
    // Type, name algorithm and attributes; then AES in CFB mode, without a scheme.
    let (head, policy, cipher) = match template {
        Template::P256(_) => ([0, 0x23, 0, 0x0b, 0, 3, 0, 0xb2], policy_a(), 128),
        Template::P384(_) => ([0, 0x23, 0, 0x0c, 0, 3, 0, 0xf2], POLICY_B.to_vec(), 256),
        Template::Rsa(_) => ([0, 1, 0, 0x0b, 0, 3, 0, 0xb2], policy_a(), 128),
    };
    let bits = u16::to_be_bytes(cipher);
    let symmetric = [0, 6, bits[0], bits[1], 0, 0x43, 0, 0x10];
    let (parameters, unique): (&[u8], _) = match template {
        Template::P256(point) => (&[0, 3, 0, 0x10], coordinates(point)),
        Template::P384(point) => (&[0, 4, 0, 0x10], coordinates(point)),
        Template::Rsa(modulus) => (&[8, 0, 0, 0, 0, 0], sized(modulus)),
    };
    [&head[..], &sized(&policy), &symmetric, parameters, &unique].concat()
}

/// `PolicyA`: `TPM2_PolicySecret(TPM_RH_ENDORSEMENT)` without a reference.
fn policy_a() -> Vec<u8> {
    let command = [0, 0, 1, 0x51, 0x40, 0, 0, 0x0b];
    let secret = Sha256::new().chain_update([0; 32]).chain_update(command);
    Sha256::digest(secret.finalize()).to_vec()
}

/// `PolicyB` with SHA-384.
const POLICY_B: [u8; 48] = [
    0xb2, 0x6e, 0x7d, 0x28, 0xd1, 0x1a, 0x50, 0xbc, 0x53, 0xd8, 0x82, 0xbc, 0xf5, 0xfd, 0x3a, 0x1a,
    0x07, 0x41, 0x48, 0xbb, 0x35, 0xd3, 0xb4, 0xe4, 0xcb, 0x1c, 0x0a, 0xd9, 0xbd, 0xe4, 0x19, 0xca,
    0xcb, 0x47, 0xba, 0x09, 0x69, 0x96, 0x46, 0x15, 0x0f, 0x9f, 0xc0, 0x00, 0xf3, 0xf8, 0x0e, 0x12,
];

/// An odd 2048-bit modulus, which does not belong to a real key.
fn modulus() -> Vec<u8> {
    let mut modulus: Vec<u8> = (0..8_u8)
        .flat_map(|block| Sha256::digest([block]))
        .collect();
    modulus[0] |= 0x80;
    modulus[255] |= 1;
    modulus
}

/// The `TPMS_ECC_POINT` for an uncompressed point.
fn coordinates(point: &[u8]) -> Vec<u8> {
    let (x, y) = point[1..].split_at(point.len() / 2);
    [sized(x), sized(y)].concat()
}

/// A `TPM2B` that contains these bytes.
fn sized(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    [&length.to_be_bytes(), bytes].concat()
}
