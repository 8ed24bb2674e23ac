//! Tests of CA keys with which a tenant tries to keep the controller busy.

use super::openssl::Pki;
use super::*;
use crate::signer::testing::parsed_keys;
use crate::testing::block;
use crate::testing::der::{octets, oid, sequence, tlv};

const RSA: &str = "1.2.840.113549.1.1.1";
const NULL: [u8; 2] = [5, 0];

/// The lengths of the numbers in a 2048-bit RSA key, in bits: the modulus, the exponents, the primes, the CRT
/// exponents, and the coefficient.
const VALID: [usize; 8] = [2048, 17, 2048, 1024, 1024, 1024, 1024, 1024];

/// A number that has this length in bits.
fn number(bits: usize) -> Vec<u8> {
    let mut digits = vec![0xff; bits / 8];
    let first = (1_u16 << (bits % 8)) - 1;
    digits.insert(0, u8::try_from(first).unwrap());
    tlv(2, &digits)
}

/// An RSA key in PKCS#1 format whose numbers are inconsistent.
fn pkcs1(lengths: &[usize]) -> Vec<u8> {
    let numbers = lengths.iter().map(|bits| number(*bits));
    let numbers: Vec<_> = [tlv(2, &[0])].into_iter().chain(numbers).collect();
    sequence(&numbers)
}

fn pkcs8(algorithm: &[Vec<u8>], key: &[u8]) -> Vec<u8> {
    sequence(&[tlv(2, &[0]), sequence(algorithm), octets(key)])
}

fn rsa_pkcs8(lengths: &[usize]) -> Vec<u8> {
    pkcs8(&[oid(RSA), NULL.to_vec()], &pkcs1(lengths))
}

/// The error for this CA key, and the number of calls to the library.
fn refusal(pki: &Pki, label: &str, der: &[u8]) -> (InvalidCa, usize) {
    let mut refused = None;
    let calls = parsed_keys(|| {
        let certificate = pki.certificate();
        let key = block(label, der);
        refused = Signer::from_pem(certificate.as_bytes(), key.as_bytes()).err();
    });
    (refused.unwrap(), calls)
}

/// A library checks the consistency of a key's numbers bit by bit.
#[test]
fn an_rsa_key_with_long_numbers_is_refused_before_it_is_parsed() {
    let pki = Pki::new();
    let check = |lengths: &[usize], why: InvalidPrivateKey, calls: usize| {
        let (in_pkcs1, in_pkcs8) = (pkcs1(lengths), rsa_pkcs8(lengths));
        for (label, der) in [("RSA PRIVATE KEY", in_pkcs1), ("PRIVATE KEY", in_pkcs8)] {
            let refused = refusal(&pki, label, &der);
            assert_eq!(refused, (why.into(), calls), "{label} {lengths:?}");
        }
    };

    // Only the library can detect that such numbers are inconsistent.
    check(&VALID, InvalidPrivateKey::Inconsistent, 1);
    for (position, name) in (1..).zip([
        "public exponent",
        "private exponent",
        "first prime",
        "second prime",
        "first CRT exponent",
        "second CRT exponent",
        "CRT coefficient",
    ]) {
        let mut lengths = VALID;
        lengths[position] = 2049;
        check(&lengths, InvalidPrivateKey::RsaNumber(name), 0);
    }
    for bits in [0, 1024, 2047, 4097, 16_384] {
        let mut lengths = VALID;
        lengths[0] = bits;
        check(&lengths, InvalidPrivateKey::RsaBits(bits), 0);
    }
    for (modulus, exponent) in [(16_384, 60_000), (2048, 60_000), (4096, 30_000)] {
        let half = modulus / 2;
        let lengths = [modulus, 17, exponent, half, half, half, half, half];
        check(&lengths, InvalidPrivateKey::TooLong, 0);
    }
}

#[test]
fn a_key_of_every_kind_is_parsed_with_one_library_call() {
    for key in [
        &["genrsa", "-traditional", "2048"][..],
        &["genrsa", "2048"],
        &["ecparam", "-genkey", "-name", "prime256v1"],
        &["ecparam", "-genkey", "-name", "secp384r1"],
        &["ecparam", "-genkey", "-name", "secp521r1"],
        &[
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-521",
        ],
    ] {
        let pki = Pki::with_key(key);

        let calls = parsed_keys(|| drop(pki.signer().unwrap()));

        assert_eq!(calls, 1, "{key:?}");
    }
}

#[test]
fn a_key_in_another_form_than_its_label_is_refused_before_it_is_parsed() {
    let pki = Pki::new();
    let rsa = pkcs1(&VALID);
    let sec1 = der_of(&pki.openssl(&["ec", "-in", "ca.key"]));
    let trailing = [rsa_pkcs8(&VALID), vec![0]].concat();
    let three_primes = pkcs1(&[
        2048, 17, 2048, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024,
    ]);
    for (label, der) in [
        ("PRIVATE KEY", &*rsa),
        ("PRIVATE KEY", &*sec1),
        ("RSA PRIVATE KEY", &*sec1),
        ("RSA PRIVATE KEY", &*rsa_pkcs8(&VALID)),
        ("RSA PRIVATE KEY", &*three_primes),
        ("EC PRIVATE KEY", &*rsa),
        ("PRIVATE KEY", &*trailing),
        ("PRIVATE KEY", &b"text"[..]),
    ] {
        let expected = (InvalidPrivateKey::Malformed.into(), 0);
        assert_eq!(refusal(&pki, label, der), expected, "{label} {der:?}");
    }
}

#[test]
fn a_key_of_an_unsupported_kind_is_refused_before_it_is_parsed() {
    let pki = Pki::new();
    let ecdsa = || oid("1.2.840.10045.2.1");
    let sec1 = |curve: &[Vec<u8>]| {
        let elements = [vec![tlv(2, &[1]), octets(&[1; 32])], curve.to_vec()].concat();
        sequence(&elements)
    };
    let explicit = pki.openssl(&[
        "ecparam",
        "-genkey",
        "-noout",
        "-name",
        "prime256v1",
        "-param_enc",
        "explicit",
    ]);
    for (label, der) in [
        // The algorithms are RSASSA-PSS, and an algorithm that does not exist.
        ("PRIVATE KEY", pkcs8(&[oid("1.2.840.113549.1.1.10")], &[])),
        ("PRIVATE KEY", pkcs8(&[oid("1.2.3.4")], &pkcs1(&VALID))),
        // The curve is secp256k1, or is missing.
        (
            "PRIVATE KEY",
            pkcs8(&[ecdsa(), oid("1.3.132.0.10")], &sec1(&[])),
        ),
        ("PRIVATE KEY", pkcs8(&[ecdsa()], &sec1(&[]))),
        ("EC PRIVATE KEY", sec1(&[tlv(0xa0, &oid("1.3.132.0.10"))])),
        ("EC PRIVATE KEY", sec1(&[])),
        ("EC PRIVATE KEY", der_of(&explicit)),
    ] {
        let expected = (InvalidPrivateKey::Kind.into(), 0);
        assert_eq!(refusal(&pki, label, &der), expected, "{label} {der:?}");
    }
}

#[test]
fn an_invalid_key_is_reported_with_its_fault_and_the_next_step() {
    for (why, expected) in [
        (
            InvalidPrivateKey::TooLong,
            "the key is longer than 4096 bytes: create an RSA key of 2048 to 4096 bits or an ECDSA key",
        ),
        (
            InvalidPrivateKey::RsaBits(16_384),
            "the RSA key has 16384 bits: create a key of 2048 to 4096 bits",
        ),
        (
            InvalidPrivateKey::RsaNumber("private exponent"),
            "the private exponent of the RSA key is longer than its modulus: create another key",
        ),
    ] {
        let error = kubelet_attestation::errors::error_chain(&InvalidCa::from(why));
        assert_eq!(error, format!("the CA key is not accepted: {expected}"));
    }
}
