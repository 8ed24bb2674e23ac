//! Tests of requested extensions and attributes.

use kubelet_attestation::names::ProviderId;
use kubelet_attestation::version::EvidenceVersion;
use x509_cert::der::asn1::ObjectIdentifier;

use crate::decide::Decision;
use crate::refusal::Denial;
use crate::testing::cluster::{AcceptAllVerifier, cluster_seen_by};
use crate::testing::{
    Csr, PROVIDER_ID_OID, decided, denied, der, envelope, extension, object, valid,
};

const SAN: &str = "2.5.29.17";
const BASIC_CONSTRAINTS: &str = "2.5.29.19";
const KEY_USAGE: &str = "2.5.29.15";
const EXTENDED_KEY_USAGE: &str = "2.5.29.37";

#[track_caller]
fn denied_csr(csr: &Csr) -> Denial {
    denied(&object(envelope(&csr.der())))
}

#[track_caller]
fn denied_with(oid: &str, critical: bool, value: &[u8]) -> Denial {
    denied_csr(&Csr::with_extension(extension(oid, critical, value)))
}

fn oid(text: &str) -> ObjectIdentifier {
    ObjectIdentifier::new(text).unwrap()
}

#[test]
fn a_ca_request_is_denied() {
    let ca = der::sequence(&[der::boolean(true)]);

    for critical in [true, false] {
        assert_eq!(
            denied_with(BASIC_CONSTRAINTS, critical, &ca),
            Denial::BasicConstraintsRequested { ca: true }
        );
    }
}

#[test]
fn unreadable_basic_constraints_are_denied_as_a_ca() {
    assert_eq!(
        denied_with(BASIC_CONSTRAINTS, true, b"\x30\x03\x01\x01\x01"),
        Denial::BasicConstraintsRequested { ca: true }
    );
}

#[test]
fn basic_constraints_without_ca_are_denied() {
    assert_eq!(
        denied_with(BASIC_CONSTRAINTS, true, &der::sequence(&[])),
        Denial::BasicConstraintsRequested { ca: false }
    );
}

#[track_caller]
fn denied_name(tag: u8, content: &[u8], kind: &'static str) {
    let names = der::sequence(&[der::tlv(tag, content)]);

    assert_eq!(
        denied_with(SAN, false, &names),
        Denial::SubjectAltNameRequested(kind)
    );
}

#[test]
fn a_dns_name_is_denied() {
    denied_name(0x82, b"kubernetes.default.svc", "DNS");
}

#[test]
fn an_ip_email_or_uri_name_is_denied() {
    denied_name(0x87, &[10, 0, 0, 1], "IP");
    denied_name(0x81, b"root@example.com", "email");
    denied_name(0x86, b"spiffe://example.com/x", "URI");
}

#[test]
fn an_other_or_directory_name_is_denied() {
    let upn = [
        der::oid("1.3.6.1.4.1.311.20.2.3"),
        der::tlv(0xa0, &der::utf8("admin")),
    ]
    .concat();

    denied_name(0xa0, &upn, "otherName");
    denied_name(0xa4, &der::sequence(&[]), "directoryName");
    denied_name(0xa3, b"", "x400Address");
    denied_name(0xa5, b"", "ediPartyName");
    denied_name(0x88, &[0x2a], "registeredID");
}

#[test]
fn an_empty_or_malformed_list_of_names_is_denied() {
    for value in [&der::sequence(&[])[..], b"", b"\xff\xff", b"\x30\x80"] {
        assert_eq!(
            denied_with(SAN, false, value),
            Denial::SubjectAltNameRequested("unknown")
        );
    }
}

#[test]
fn usages_inside_the_request_are_denied() {
    let cert_sign = der::tlv(0x03, &[2, 0x04]);
    let server_auth = der::sequence(&[der::oid("1.3.6.1.5.5.7.3.1")]);
    let client_auth = der::sequence(&[der::oid("1.3.6.1.5.5.7.3.2")]);

    for (oid, value) in [
        (KEY_USAGE, cert_sign),
        (EXTENDED_KEY_USAGE, server_auth),
        (EXTENDED_KEY_USAGE, client_auth),
    ] {
        assert_eq!(
            denied_with(oid, false, &value),
            Denial::UsageExtensionRequested
        );
    }
}

#[test]
fn a_duplicate_extension_is_denied() {
    let second = extension(PROVIDER_ID_OID, false, &der::utf8("metal:///rack/m2"));

    assert_eq!(
        denied_csr(&Csr::with_extension(second)),
        Denial::DuplicateExtension
    );
}

#[test]
fn two_extension_lists_are_denied() {
    let csr = Csr::valid();
    let mut lists = vec![
        Csr::extension_request(&csr.extensions),
        Csr::extension_request(&[extension("1.2.3", false, b"")]),
    ];
    lists.sort();
    let csr = Csr {
        attributes: Some(lists),
        ..csr
    };

    assert_eq!(denied_csr(&csr), Denial::DuplicateAttribute);
}

#[test]
fn two_values_in_one_extension_list_are_denied() {
    let csr = Csr::valid();
    let mut values = [
        der::sequence(&csr.extensions),
        der::sequence(&[extension("1.2.3", false, b"")]),
    ];
    values.sort();
    let attribute = der::sequence(&[der::oid("1.2.840.113549.1.9.14"), der::set(&values)]);
    let csr = Csr {
        attributes: Some(vec![attribute]),
        ..csr
    };

    assert_eq!(denied_csr(&csr), Denial::DuplicateAttribute);
}

#[test]
fn the_microsoft_extension_list_is_denied() {
    let csr = Csr::valid();
    let microsoft = der::oid("1.3.6.1.4.1.311.2.1.14");
    let attribute = der::sequence(&[microsoft, der::set(&[der::sequence(&csr.extensions)])]);
    let csr = Csr {
        attributes: Some(vec![attribute]),
        ..csr
    };

    assert_eq!(denied_csr(&csr), Denial::UnknownAttribute);
}

#[test]
fn a_challenge_password_is_denied() {
    let csr = Csr::valid();
    let password = der::sequence(&[
        der::oid("1.2.840.113549.1.9.7"),
        der::set(&[der::utf8("x")]),
    ]);
    let mut attributes = vec![Csr::extension_request(&csr.extensions), password];
    attributes.sort();
    let csr = Csr {
        attributes: Some(attributes),
        ..csr
    };

    assert_eq!(denied_csr(&csr), Denial::UnknownAttribute);
}

#[test]
fn an_unknown_extension_is_denied() {
    assert_eq!(
        denied_with("1.2.3.4", false, b"x"),
        Denial::UnknownExtension(oid("1.2.3.4"))
    );
}

#[test]
fn a_critical_unknown_extension_is_denied() {
    assert_eq!(
        denied_with("1.2.3.4", true, b"x"),
        Denial::CriticalExtension(oid("1.2.3.4"))
    );
}

#[track_caller]
fn denied_provider_id(extensions: Vec<Vec<u8>>) -> Denial {
    denied_csr(&Csr {
        extensions,
        ..Csr::valid()
    })
}

#[test]
fn a_missing_provider_id_is_denied() {
    assert_eq!(denied_provider_id(vec![]), Denial::ProviderIdMissing);
    let csr = Csr {
        attributes: Some(vec![]),
        ..Csr::valid()
    };
    assert_eq!(denied_csr(&csr), Denial::ProviderIdMissing);
}

#[test]
fn a_malformed_provider_id_is_denied() {
    let valid = der::utf8("metal:///rack/m1");
    for value in [
        [&valid[..], b"x"].concat(),
        der::printable("metal:///rack/m1"),
        b"metal:///rack/m1".to_vec(),
        der::utf8(""),
        der::utf8("m1"),
        der::utf8("metal:///rack/m1\n"),
        der::utf8(&format!("metal:///{}", "m".repeat(512))),
        der::sequence(&[valid]),
        vec![],
    ] {
        assert_eq!(
            denied_provider_id(vec![extension(PROVIDER_ID_OID, false, &value)]),
            Denial::ProviderIdMalformed
        );
    }
}

#[test]
fn a_critical_provider_id_is_denied() {
    let value = der::utf8("metal:///rack/m1");

    assert_eq!(
        denied_provider_id(vec![extension(PROVIDER_ID_OID, true, &value)]),
        Denial::CriticalExtension(oid(PROVIDER_ID_OID))
    );
}

#[test]
fn a_provider_id_other_than_the_attested_one_is_denied() {
    let m2 = ProviderId::parse("metal:///rack/m2").unwrap();
    let cluster = cluster_seen_by(AcceptAllVerifier {
        sees: Some(m2.clone()),
        node_name: None,
        versions: vec![EvidenceVersion::V1],
    });

    let Decision::Deny(denial) = decided(&valid(), &cluster) else {
        panic!("not denied");
    };

    assert_eq!(
        denial,
        Denial::AnotherMachine {
            attested: m2,
            claimed: ProviderId::parse("metal:///rack/m1").unwrap(),
        }
    );
}
