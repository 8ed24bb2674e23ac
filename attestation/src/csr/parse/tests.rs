use proptest::prelude::*;

use super::*;
use crate::csr::encode::{oid as encoded_oid, sequence, set, tlv, utf8};

const PROVIDER_ID: &str = "aws:///eu-west-1a/i-0123456789abcdef0";

fn extension(kind: ObjectIdentifier, value: &[u8]) -> Vec<u8> {
    sequence(&[encoded_oid(kind), tlv(0x04, value)])
}

fn requested(lists: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let lists: Vec<_> = lists.iter().map(|list| sequence(list)).collect();
    sequence(&[encoded_oid(oid::EXTENSION_REQUEST), set(&lists)])
}

fn bits(content: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], content].concat())
}

fn subject() -> Vec<u8> {
    let common_name = ObjectIdentifier::new_unwrap("2.5.4.3");
    sequence(&[set(&[sequence(&[encoded_oid(common_name), utf8("n1")])])])
}

fn spki() -> Vec<u8> {
    let key = [encoded_oid(oid::EC_PUBLIC_KEY), encoded_oid(oid::P256)];
    sequence(&[sequence(&key), bits(b"point")])
}

fn request(attributes: &[Vec<u8>]) -> Vec<u8> {
    let info = sequence(&[
        tlv(0x02, &[0]),
        subject(),
        spki(),
        tlv(0xa0, &attributes.concat()),
    ]);
    let algorithm = sequence(&[encoded_oid(oid::ECDSA_WITH_SHA256)]);
    sequence(&[info, algorithm, bits(b"signature")])
}

fn valid() -> Vec<u8> {
    let provider_id = extension(oid::PROVIDER_ID, &utf8(PROVIDER_ID));
    request(&[requested(&[vec![provider_id]])])
}

fn error(der: &[u8]) -> InvalidRequest {
    CertificationRequest::from_der(der).unwrap_err()
}

#[test]
fn a_valid_certification_request_is_parsed() {
    let der = valid();
    let request = CertificationRequest::from_der(&der).unwrap();

    assert_eq!(request.subject().to_der().unwrap(), subject());
    assert_eq!(
        request.key_algorithm(),
        (oid::EC_PUBLIC_KEY, Some(oid::P256))
    );
    assert_eq!(request.key_bits(), Some(&b"point"[..]));
    assert_eq!(request.signature_algorithm(), Some(oid::ECDSA_WITH_SHA256));
    assert_eq!(request.signature(), Some(&b"signature"[..]));
    assert_eq!(request.claimed_provider_id().unwrap().as_str(), PROVIDER_ID);
    assert_eq!(request.extensions().len(), 1);
}

#[test]
fn signed_bytes_and_spki_are_exact_copies_of_the_request() {
    let der = valid();
    let request = CertificationRequest::from_der(&der).unwrap();
    let contains = |part: &[u8]| der.windows(part.len()).any(|window| window == part);

    assert!(contains(request.signed_bytes()));
    assert!(request.signed_bytes().len() > der.len() / 2);
    assert_eq!(request.spki_der(), spki());
}

#[test]
fn a_request_without_extensions_claims_nothing() {
    let request = CertificationRequest::from_der(&request(&[])).unwrap();

    assert!(request.extensions().is_empty());
    assert_eq!(request.claimed_provider_id(), None);
}

#[test]
fn a_request_that_is_not_der_is_refused() {
    let der = valid();
    let indefinite = [&[0x30, 0x80], &der[3..], &[0, 0]].concat();
    let long_length = [&[0x30, 0x82, 0x00], &der[2..]].concat();

    for der in [
        &[][..],
        b"x",
        &der[..der.len() - 1],
        &[&der[..], &[0]].concat(),
        &indefinite,
        &long_length,
    ] {
        assert!(matches!(error(der), InvalidRequest::Der(_)));
    }
}

#[test]
fn a_non_canonical_request_is_refused() {
    let values = [utf8("b"), utf8("a")];
    let unsorted = sequence(&[encoded_oid(oid::EXTENSION_REQUEST), set(&values)]);

    let error = error(&request(&[unsorted]));
    assert!(matches!(error, InvalidRequest::NotCanonical));
}

#[test]
fn an_extension_list_that_is_not_der_is_refused() {
    let explicit_default = sequence(&[
        encoded_oid(oid::PROVIDER_ID),
        tlv(0x01, &[0]),
        tlv(0x04, &utf8(PROVIDER_ID)),
    ]);

    assert!(matches!(
        error(&request(&[requested(&[vec![explicit_default]])])),
        InvalidRequest::NotCanonical
    ));
}

#[test]
fn an_unexpected_request_attribute_is_refused() {
    let challenge_password = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.7");
    let attribute = sequence(&[encoded_oid(challenge_password), set(&[utf8("x")])]);

    assert!(matches!(
        error(&request(&[attribute])),
        InvalidRequest::UnknownAttribute
    ));
}

#[test]
fn two_extension_lists_are_refused() {
    let first = vec![extension(oid::PROVIDER_ID, &utf8(PROVIDER_ID))];
    let second = vec![extension(oid::SUBJECT_ALT_NAME, b"")];
    let mut values = [first, second];
    values.sort_by_key(|list| sequence(list));
    let mut attributes = values.clone().map(|list| requested(&[list]));
    attributes.sort();

    for attributes in [&[requested(&values)][..], &attributes, &[requested(&[])]] {
        assert!(matches!(
            error(&request(attributes)),
            InvalidRequest::DuplicateAttribute
        ));
    }
}

#[test]
fn a_duplicate_extension_is_refused() {
    let provider_id = |text: &str| extension(oid::PROVIDER_ID, &utf8(text));
    let list = vec![provider_id("a://1"), provider_id("a://2")];

    assert!(matches!(
        error(&request(&[requested(&[list])])),
        InvalidRequest::DuplicateExtension
    ));
}

#[test]
fn a_malformed_provider_id_extension_is_ignored() {
    for value in [
        tlv(0x13, PROVIDER_ID.as_bytes()),
        [utf8(PROVIDER_ID), vec![0]].concat(),
        PROVIDER_ID.as_bytes().to_vec(),
        utf8("no provider ID"),
        vec![],
    ] {
        let list = vec![extension(oid::PROVIDER_ID, &value)];
        let request = CertificationRequest::from_der(&request(&[requested(&[list])])).unwrap();

        assert_eq!(request.claimed_provider_id(), None);
    }
}

proptest! {
    #[test]
    fn a_changed_request_is_refused_or_parsed_with_exact_signed_bytes(
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut der = valid();
        *at.get_mut(&mut der) = byte;

        if let Ok(request) = CertificationRequest::from_der(&der) {
            let signed = request.signed_bytes();
            prop_assert!(der.windows(signed.len()).any(|window| window == signed));
        }
    }
}
