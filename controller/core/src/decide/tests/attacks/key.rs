//! Tests of the key, and of the proof that the requester has it.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use x509_cert::der::asn1::ObjectIdentifier;

use crate::refusal::Denial;
use crate::testing::{Csr, denied, der, envelope, object};

const EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";
const RSA: &str = "1.2.840.113549.1.1.1";

/// The order of P-256 (SEC 2 section 2.4.2).
const ORDER: &str = "FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551";

#[track_caller]
fn denied_csr(csr: &Csr) -> Denial {
    denied(&object(envelope(&csr.der())))
}

#[track_caller]
fn denied_key(algorithm: &[Vec<u8>], named: &str) {
    let csr = Csr {
        key_algorithm: algorithm.to_vec(),
        ..Csr::valid()
    };

    assert_eq!(
        denied_csr(&csr),
        Denial::KeyNotAccepted(ObjectIdentifier::new(named).unwrap())
    );
}

#[test]
fn a_request_signed_with_another_key_is_denied() {
    let csr = Csr::valid();
    let other = Csr {
        key_bits: Some(csr.key.public_key().as_ref().to_vec()),
        ..Csr::valid()
    };

    assert_eq!(denied_csr(&other), Denial::SelfSignatureInvalid);
}

#[test]
fn a_request_changed_after_it_was_signed_is_denied() {
    let csr = Csr::valid().der();
    let at = csr
        .windows(2)
        .position(|window| window == b"n1")
        .expect("the node name");
    let mut other = csr;
    other[at + 1] = b'2';

    assert_eq!(
        denied(&object(envelope(&other))),
        Denial::SelfSignatureInvalid
    );
}

#[test]
fn an_unsupported_signature_algorithm_is_denied() {
    let ecdsa_with_sha1 = "1.2.840.10045.4.1";
    let ecdsa_with_sha384 = "1.2.840.10045.4.3.3";
    let md5_with_rsa = "1.2.840.113549.1.1.4";
    for algorithm in [ecdsa_with_sha1, ecdsa_with_sha384, md5_with_rsa] {
        let csr = Csr {
            signature_algorithm: vec![der::oid(algorithm)],
            ..Csr::valid()
        };

        assert_eq!(
            denied_csr(&csr),
            Denial::SignatureAlgorithmNotAccepted,
            "{algorithm}"
        );
    }
}

#[test]
fn parameters_of_the_signature_algorithm_are_denied() {
    let mut csr = Csr::valid();
    csr.signature_algorithm.push(der::null());

    assert_eq!(denied_csr(&csr), Denial::SignatureAlgorithmNotAccepted);
}

#[test]
fn a_signature_of_zeros_or_beyond_the_order_is_denied() {
    let order = data_encoding::HEXUPPER.decode(ORDER.as_bytes()).unwrap();
    let order = der::integer(&[&[0], order.as_slice()].concat());
    let (zero, one) = (der::integer(&[0]), der::integer(&[1]));
    for (r, s) in [
        (zero.clone(), zero.clone()),
        (zero.clone(), one.clone()),
        (one.clone(), zero),
        (order.clone(), one.clone()),
        (one, order),
    ] {
        let csr = Csr {
            signature: Some(der::sequence(&[r, s])),
            ..Csr::valid()
        };

        assert_eq!(denied_csr(&csr), Denial::SelfSignatureInvalid);
    }
}

#[test]
fn an_invalid_self_signature_is_denied() {
    for signature in [vec![], vec![0x30, 0x00], vec![0; 72]] {
        let csr = Csr {
            signature: Some(signature),
            ..Csr::valid()
        };

        assert_eq!(denied_csr(&csr), Denial::SelfSignatureInvalid);
    }
}

#[test]
fn an_rsa_key_of_any_size_and_exponent_is_denied() {
    let modulus = |len: usize| der::integer(&[&[0], vec![0xff; len].as_slice()].concat());
    for (len, exponent) in [(64, 3), (128, 3), (256, 1), (256, 2), (2048, 3)] {
        let key = der::sequence(&[modulus(len), der::integer(&[exponent])]);
        let csr = Csr {
            key_algorithm: vec![der::oid(RSA), der::null()],
            key_bits: Some(key),
            ..Csr::valid()
        };

        assert_eq!(
            denied_csr(&csr),
            Denial::KeyNotAccepted(ObjectIdentifier::new(RSA).unwrap())
        );
    }
}

#[test]
fn a_curve_other_than_p256_is_denied() {
    let p224 = "1.3.132.0.33";
    let secp256k1 = "1.3.132.0.10";
    let p384 = "1.3.132.0.34";
    for curve in [p224, secp256k1, p384] {
        denied_key(&[der::oid(EC_PUBLIC_KEY), der::oid(curve)], curve);
    }
}

#[test]
fn explicit_curve_parameters_are_denied() {
    let explicit = der::sequence(&[der::integer(&[1]), der::sequence(&[])]);

    denied_key(&[der::oid(EC_PUBLIC_KEY), explicit], EC_PUBLIC_KEY);
    denied_key(&[der::oid(EC_PUBLIC_KEY)], EC_PUBLIC_KEY);
    denied_key(&[der::oid(EC_PUBLIC_KEY), der::null()], EC_PUBLIC_KEY);
}

#[test]
fn a_key_that_is_not_an_uncompressed_curve_point_is_denied() {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let point = key.public_key().as_ref().to_vec();
    let mut off_curve = point.clone();
    off_curve[64] ^= 1;
    let mut hybrid = point.clone();
    hybrid[0] = 6 + (point[64] & 1);
    let compressed = [&[2 + (point[64] & 1)], &point[1..33]].concat();
    let infinity = vec![0];
    let beyond_the_field = [&[4][..], &[0xff; 64]].concat();

    for key_bits in [
        off_curve,
        hybrid,
        compressed,
        infinity,
        beyond_the_field,
        vec![],
        point[..64].to_vec(),
        [&point[..], &[0]].concat(),
    ] {
        let csr = Csr {
            key_bits: Some(key_bits),
            ..Csr::valid()
        };

        assert_eq!(denied_csr(&csr), Denial::KeyNotOnCurve);
    }
}
