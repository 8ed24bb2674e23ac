//! Targets for the parsers in `node-attestation-core`: requests and their decisions, serving names, identifiers.

use std::net::IpAddr;

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use node_attestation_core::decide::Decision;
use node_attestation_core::identifiers::{
    CertificateUid, KeyDigest, RecordUid, ServingName, TokenId,
};
use node_attestation_core::serving::AddressRange;
use node_attestation_core::testing::serving::{dns, ip, serving_names as parse_serving_names};
use node_attestation_core::testing::{cluster, decided, der, object, valid};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::Outcome;

/// One more than the maximum number of names in a serving certificate.
const TOO_MANY_NAMES: usize = 33;

/// Decides on the `spec.request` of a joining machine. If a certificate is issued, it has the requested key and name.
pub fn decision(input: &[u8]) -> Outcome {
    let Decision::Issue(issued) = decided(&object(input), &cluster()) else {
        return Outcome::Refused;
    };
    let envelope = Envelope::parse(input).unwrap();
    let request = CertificationRequest::from_der(&envelope.csr).unwrap();
    let block = pem::parse(&issued.pem).unwrap();
    let (rest, certificate) = X509Certificate::from_der(block.contents()).unwrap();
    assert!(rest.is_empty());
    assert_eq!(certificate.public_key().raw, request.spki_der());
    assert_eq!(issued.node_name.as_str(), "n1");
    let names: Vec<_> = certificate.subject().iter_common_name().collect();
    let names: Vec<_> = names.iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names, ["system:node:n1"]);
    Outcome::Accepted
}

/// The valid request.
pub fn decision_seeds() -> Vec<Vec<u8>> {
    vec![valid().spec.request.0]
}

/// Checks that the names in a serving certificate have exactly one encoding.
pub fn serving_names(input: &[u8]) -> Outcome {
    let Ok(names) = parse_serving_names(input) else {
        return Outcome::Refused;
    };
    assert!((1..TOO_MANY_NAMES).contains(&names.len()));
    let encoded = names.iter().map(|name| match name {
        ServingName::Dns(name) => dns(name),
        ServingName::Ip(address) => ip(*address),
    });
    let encoded: Vec<_> = encoded.collect();
    assert_eq!(der::sequence(&encoded), input);
    Outcome::Accepted
}

/// A name, and names with IPv4 and IPv6 addresses.
pub fn serving_names_seeds() -> Vec<Vec<u8>> {
    let mixed = [
        dns("ip-10-0-0-1.eu-west-1.compute.internal"),
        ip([192, 0, 2, 1]),
        ip([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    ];
    vec![der::sequence(&[dns("n1")]), der::sequence(&mixed)]
}

/// Checks that the text form of every accepted identifier equals the input.
pub fn identifiers(input: &[u8]) -> Outcome {
    let Ok(text) = str::from_utf8(input) else {
        return Outcome::Refused;
    };
    let range: Option<AddressRange> = text.parse().ok();
    if let Some(range) = range {
        let (network, _) = text.split_once('/').unwrap();
        // `AddressRange` accepts leading zeros, which `std` rejects.
        if let Ok(network) = network.parse::<IpAddr>() {
            assert!(range.contains(&network));
        }
    }
    let read = [
        KeyDigest::parse(text).ok().map(|digest| digest.to_string()),
        RecordUid::parse(text).ok().map(|uid| uid.to_string()),
        CertificateUid::parse(text).ok().map(|uid| uid.to_string()),
        TokenId::parse(text).ok().map(|id| id.to_string()),
    ];
    let mut read_texts = read.iter().flatten();
    assert!(read_texts.all(|read| read == text), "{read:?}");
    Outcome::of(range.is_some() || read.iter().any(Option::is_some))
}

/// An identifier of each kind.
pub fn identifiers_seeds() -> Vec<Vec<u8>> {
    let identifiers = [
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "000102030405060708090a0b0c0d0e0f",
        "000102030405060708090a0b0c0d0e0f.18446744073709551615",
        "abcdef",
        "10.96.0.0/12",
        "fd00:10::/108",
    ];
    identifiers.map(|text| text.as_bytes().to_vec()).into()
}
