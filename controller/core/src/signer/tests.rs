//! Tests that check issued certificates with openssl and with another parser.

mod external;
mod keys;
mod openssl;
mod turns;

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use futures::executor::block_on;
use kubelet_attestation::names::Provider;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyIdMethod, KeyPair,
};
use x509_parser::prelude::{FromDer as _, ParsedExtension, X509Certificate};

use super::ca::MAX_SUBJECT_LEN;
use super::*;
use crate::decide::{Context, Decision, decide};
use crate::refusal::Deferral;
use crate::testing::serving::{
    ADDRESS, ADDRESS_6, dns, ip, serving_cluster, serving_csr, serving_object,
};
use crate::testing::{Csr, UID, cluster, decided_at, envelope, issued_at, object, valid};
use crate::time::unix_seconds;
use openssl::{CA_EXTENSIONS, Pki};

const DAY: Duration = Duration::from_hours(24);

fn cluster_of(signer: Signer) -> Context {
    Context {
        signer: signer.into(),
        ..cluster()
    }
}

/// A time at which the CA certificate is valid, but not for much longer than a node certificate.
fn late(signer: &Signer) -> SystemTime {
    signer.not_after() - 30 * DAY
}

fn der_of(pem: &str) -> Vec<u8> {
    pem::parse(pem).unwrap().into_contents()
}

/// Issues a certificate with this CA. Verifies the chain with openssl, as a strict server does.
fn issue_and_verify(pki: &Pki) -> Vec<u8> {
    let signer = pki.signer().unwrap();
    let now = late(&signer);
    let certificate = issued_at(&valid(), &cluster_of(signer), now);
    pki.verify(&certificate.pem, now);
    der_of(&certificate.pem)
}

#[test]
fn a_chain_with_each_kind_of_key_is_valid() {
    for key in [
        &["genrsa", "-traditional", "2048"][..],
        &["genrsa", "4096"],
        &["ecparam", "-genkey", "-name", "prime256v1"],
        &["ecparam", "-genkey", "-noout", "-name", "secp384r1"],
        &["ecparam", "-genkey", "-name", "secp521r1"],
        &[
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ],
        &[
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-384",
        ],
        &[
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
        ],
    ] {
        issue_and_verify(&Pki::with_key(key));
    }
}

#[test]
fn the_issuer_is_the_cas_subject_byte_for_byte() {
    for subject in [
        "/CN=kubernetes",
        "/DC=com/DC=example/CN=ca",
        "/O=example/OU=first/OU=second/CN=ca",
        "/O=example/CN=ca+OU=platform+UID=7",
        "/C=DE/ST=B\u{e4}r/L=x/CN=ca",
    ] {
        let pki = Pki::with_subject(subject);
        let certificate = issue_and_verify(&pki);
        let ca = der_of(&pki.certificate());
        let (_, certificate) = X509Certificate::from_der(&certificate).unwrap();
        let (_, ca) = X509Certificate::from_der(&ca).unwrap();

        assert_eq!(
            certificate.issuer().as_raw(),
            ca.subject().as_raw(),
            "{subject}"
        );
    }
}

#[test]
fn a_client_certificate_contains_only_verified_fields() {
    let pki = Pki::new();
    let signer = pki.signer().unwrap();
    let now = late(&signer);
    let csr = Csr::valid();
    let request = object(envelope(&csr.der()));

    let pem = issued_at(&request, &cluster_of(signer), now);

    let der = der_of(&pem.pem);
    let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
    assert!(rest.is_empty());
    assert_eq!(
        certificate.subject().to_string(),
        format!("O=system:nodes, CN=system:node:n1, OID(1.3.6.1.4.1.57683.2)={UID}")
    );
    assert_eq!(certificate.version().0, 2);
    assert_eq!(certificate.public_key().raw, csr.spki());
    let extensions: Vec<_> = certificate
        .extensions()
        .iter()
        .map(|extension| (extension.oid.to_id_string(), extension.critical))
        .collect();
    let expected = [
        ("2.5.29.19", true),
        ("2.5.29.15", true),
        ("2.5.29.37", false),
        ("1.3.6.1.4.1.11129.2.1.21", false),
        ("2.5.29.35", false),
    ];
    assert_eq!(
        extensions,
        expected.map(|(oid, critical)| (oid.to_owned(), critical))
    );
}

#[test]
fn an_issued_certificate_permits_only_client_authentication() {
    let certificate = issue_and_verify(&Pki::new());
    let (_, certificate) = X509Certificate::from_der(&certificate).unwrap();

    assert!(!certificate.is_ca());
    assert_eq!(certificate.key_usage().unwrap().unwrap().value.flags, 1);
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any && usage.other.is_empty());
    let provider_id = certificate
        .extensions()
        .iter()
        .find(|extension| {
            matches!(
                extension.parsed_extension(),
                ParsedExtension::UnsupportedExtension { .. }
            )
        })
        .unwrap();
    assert_eq!(provider_id.value, b"\x0c\x10metal:///rack/m1");
}

#[test]
fn a_certificate_is_valid_from_five_minutes_ago_for_its_lifetime() {
    let signer = Pki::new().signer().unwrap();
    let now = late(&signer);

    let issued = issued_at(&valid(), &cluster_of(signer), now);

    let der = der_of(&issued.pem);
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    let seconds = |time: SystemTime| i64::try_from(unix_seconds(time)).unwrap();
    let validity = certificate.validity();
    assert_eq!(validity.not_before.timestamp(), seconds(now) - 300);
    assert_eq!(validity.not_after.timestamp(), seconds(now + 7 * DAY));
    assert_eq!(issued.not_after, now + 7 * DAY);
}

#[test]
fn a_certificate_expires_before_its_ca() {
    let signer = Pki::new().signer().unwrap();
    let end = signer.not_after();

    let issued = issued_at(&valid(), &cluster_of(signer), end - DAY);

    assert_eq!(issued.not_after, end);
}

#[test]
fn a_serving_certificate_expires_before_its_ca() {
    let pki = Pki::new();
    let signer = pki.signer().unwrap();
    let end = signer.not_after();
    let cluster = Context {
        signer: signer.into(),
        ..serving_cluster()
    };
    let mut request = serving_object(&serving_csr(&[dns("n1")]));
    request.spec.signer_name = Provider::NULL.serving_signer();

    let issued = issued_at(&request, &cluster, end - DAY);

    assert_eq!(issued.not_after, end);
    let der = der_of(&issued.pem);
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    let valid_until = certificate.validity().not_after.to_datetime();
    assert_eq!(SystemTime::from(valid_until), end);
}

#[test]
fn a_ca_outside_its_validity_does_not_issue_certificates() {
    let pki = Pki::new();
    let end = pki.signer().unwrap().not_after();
    let begin = end - 365 * DAY;

    for now in [end + Duration::from_secs(1), begin - Duration::from_secs(1)] {
        let decision = decided_at(&valid(), &cluster_of(pki.signer().unwrap()), now);

        assert!(
            matches!(decision, Decision::Retry(Deferral::CaNotValid)),
            "{decision:?}"
        );
    }
}

#[test]
fn a_ca_is_valid_from_its_first_second_to_its_last() {
    let signer = Pki::new().signer().unwrap();
    let end = signer.not_after();
    let begin = end - 365 * DAY;

    for now in [begin, end] {
        let checked = block_on(signer.check(now));
        assert!(checked.is_ok(), "{checked:?}");
    }
}

#[test]
fn no_node_name_is_claimed_with_a_ca_outside_its_validity() {
    let signer = Pki::new().signer().unwrap();
    let now = signer.not_after() + Duration::from_secs(1);

    let decided = block_on(decide(&valid(), &cluster_of(signer), now, || {
        Duration::ZERO
    }));

    let checks: Vec<_> = decided.steps.iter().map(|step| step.check).collect();
    assert!(!checks.contains(&"claim"), "{checks:?}");
    assert_eq!(checks.last(), Some(&"signature"));
}

#[test]
fn the_certificate_expiry_in_the_record_follows_the_ca_expiry() {
    let old = Pki::new().signer().unwrap();
    let end = old.not_after();
    let former = cluster_of(old);
    issued_at(&valid(), &former, end - DAY);
    let present = Context {
        ledger: former.ledger.clone(),
        ..cluster()
    };

    let again = issued_at(&valid(), &present, end + Duration::from_secs(1));

    assert!(again.uid.generation > 1, "{}", again.uid);
}

#[test]
fn serial_numbers_are_positive_and_unique() {
    let signer = Pki::new().signer().unwrap();
    let (now, cluster) = (late(&signer), cluster_of(signer));
    let request = valid();
    let mut serials: Vec<_> = (0..32)
        .map(|_| {
            let issued = issued_at(&request, &cluster, now);
            let der = der_of(&issued.pem);
            let (_, certificate) = X509Certificate::from_der(&der).unwrap();
            assert!(certificate.raw_serial().len() <= 17 && certificate.raw_serial()[0] < 0x80);
            issued.serial.clone()
        })
        .collect();
    serials.sort_unstable();
    serials.dedup();

    assert_eq!(serials.len(), 32);
}

#[test]
fn a_ca_certificate_without_ca_constraints_is_refused() {
    for extensions in [
        &["basicConstraints=critical,CA:FALSE"][..],
        &[
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,digitalSignature",
        ],
    ] {
        let pki = Pki::made_of(
            &["ecparam", "-genkey", "-name", "prime256v1"],
            "/CN=ca",
            extensions,
        );

        assert!(
            matches!(pki.signer(), Err(InvalidCa::NotACa)),
            "{extensions:?}"
        );
    }
}

#[test]
fn a_ca_with_a_long_subject_or_key_identifier_is_refused() {
    let key = KeyPair::generate().unwrap();
    let parsed = |name_len: usize, key_id_len: usize| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_identifier_method = KeyIdMethod::PreSpecified(vec![7; key_id_len]);
        params.distinguished_name = DistinguishedName::new();
        let name = "x".repeat(name_len);
        params
            .distinguished_name
            .push(DnType::OrganizationName, name);
        let ca = params.self_signed(&key).unwrap().pem();
        let ca = CaCertificate::from_pem(ca.as_bytes());
        ca.map(|ca| (ca.subject.len(), ca.key_id.map(|id| id.len())))
    };
    // The headers in the subject are 21 bytes long.
    let longest = MAX_SUBJECT_LEN - 21;

    assert_eq!(parsed(longest, 64), Ok((4096, Some(64))));
    let subject = parsed(longest + 1, 64).unwrap_err();
    assert_eq!(subject, InvalidCa::SubjectTooLong);
    let key_id = parsed(longest, 65).unwrap_err();
    assert_eq!(key_id, InvalidCa::KeyIdTooLong);
    assert_eq!(
        [subject, key_id].map(|error| error.to_string()),
        [
            "the CA certificate's subject is longer than 4096 bytes: use a CA with a shorter subject",
            "the CA certificate's key identifier is longer than 64 bytes: use a CA with a shorter key identifier",
        ]
    );
}

#[test]
fn the_key_of_another_ca_is_refused() {
    let (ca, other) = (Pki::new(), Pki::new());
    let rsa = Pki::with_key(&["genrsa", "2048"]);

    for key in [other.key(), rsa.key()] {
        let signer = Signer::from_pem(ca.certificate().as_bytes(), key.as_bytes());

        assert!(matches!(signer, Err(InvalidCa::KeyMismatch)));
    }
}

#[test]
fn a_key_of_another_kind_or_size_is_refused() {
    for (key, why) in [
        (
            &["genrsa", "1024"][..],
            InvalidPrivateKey::RsaBits(1024).into(),
        ),
        (&["genpkey", "-algorithm", "ED25519"], InvalidCa::KeyKind),
        (
            &["ecparam", "-genkey", "-name", "secp256k1"],
            InvalidPrivateKey::Kind.into(),
        ),
    ] {
        let pki = Pki::made_of(key, "/CN=ca", &CA_EXTENSIONS);

        assert_eq!(pki.signer().unwrap_err(), why, "{key:?}");
    }
}

#[test]
fn malformed_ca_files_are_refused() {
    let pki = Pki::new();
    let (certificate, key) = (pki.certificate(), pki.key());
    let twice = certificate.repeat(2);
    let encrypted = pki.openssl(&["pkey", "-in", "ca.key", "-aes256", "-passout", "pass:x"]);

    for text in ["", "x", &key, &twice] {
        let signer = Signer::from_pem(text.as_bytes(), key.as_bytes());
        assert!(
            matches!(signer, Err(InvalidCa::NotOneCertificate)),
            "{text}"
        );
    }
    for text in ["", "x", &certificate, &key.repeat(2), &encrypted] {
        let signer = Signer::from_pem(certificate.as_bytes(), text.as_bytes());
        assert!(matches!(signer, Err(InvalidCa::KeyForm)), "{text}");
    }
}

#[test]
fn a_signer_returns_the_certificate_of_its_ca() {
    let pki = Pki::new();

    assert_eq!(pki.signer().unwrap().ca_der(), der_of(&pki.certificate()));
}

#[test]
fn debug_output_of_a_signer_contains_no_key() {
    assert_eq!(format!("{:?}", Pki::new().signer().unwrap()), "Signer");
}

#[test]
fn a_serving_certificate_contains_exactly_the_corroborated_names() {
    let pki = Pki::new();
    let signer = pki.signer().unwrap();
    let now = late(&signer);
    let cluster = Context {
        signer: signer.into(),
        ..serving_cluster()
    };
    let csr = serving_csr(&[
        dns("n1"),
        ip(ADDRESS),
        ip(ADDRESS_6.parse::<IpAddr>().unwrap()),
    ]);
    let mut request = serving_object(&csr);
    request.spec.signer_name = Provider::NULL.serving_signer();

    let issued = issued_at(&request, &cluster, now);

    pki.verify_server(&issued.pem, now);
    let der = der_of(&issued.pem);
    let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
    assert!(rest.is_empty());
    assert_eq!(
        certificate.subject().to_string(),
        "O=system:nodes, CN=system:node:n1"
    );
    assert_eq!(certificate.public_key().raw, csr.spki());
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && !usage.client_auth && !usage.any && usage.other.is_empty());
    assert_eq!(certificate.key_usage().unwrap().unwrap().value.flags, 1);
    assert!(!certificate.is_ca());
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let names: Vec<_> = names
        .value
        .general_names
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let extensions: Vec<_> = certificate
        .extensions()
        .iter()
        .map(|extension| extension.oid.to_id_string())
        .collect();
    assert_eq!(
        extensions,
        [
            "2.5.29.19",
            "2.5.29.15",
            "2.5.29.37",
            "2.5.29.17",
            "2.5.29.35"
        ]
    );
    assert_eq!(issued.not_after, now + 7 * DAY);
}
