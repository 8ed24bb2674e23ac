//! The built-in signer: what it issues, and how it fails to.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{ApiServer, Flaw, Issuance, Signer};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::pki::{KeyAndCertificate, Subject, certificate_request};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::client::{CSRS, Caller, csr, csr_of};

const HOUR: Duration = Duration::from_secs(3600);

/// What is left of a request after this signer.
fn status_after(signer: Signer) -> Value {
    let server = ApiServer::start();
    server.set_signer(signer);
    Caller::bootstrap(&server).post(CSRS, &csr("a", "node-1"));
    server.csr("a").unwrap()["status"].clone()
}

fn pem(status: &Value) -> String {
    let encoded = status["certificate"].as_str().expect("a certificate");
    String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn flawed(flaw: Flaw, check: impl Fn(&X509Certificate<'_>) -> bool) {
    let der = der(&pem(&status_after(Signer::flawed(flaw))));
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    assert!(check(&certificate), "{flaw:?}: {certificate:?}");
}

#[test]
fn what_it_issues_authenticates_and_carries_what_was_asked() {
    let server = ApiServer::start();
    server.set_signer(Signer::Issue(Issuance {
        uid: Some("0123.1".into()),
        ..Issuance::default()
    }));
    let (request, key_pem) = certificate_request(&Subject::node("n1"), Some("test:///1"));
    Caller::bootstrap(&server).post(CSRS, &csr_of("a", request.as_bytes()));

    let certificate_pem = pem(&server.csr("a").unwrap()["status"]);
    let der = der(&certificate_pem);
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    let extension = certificate
        .extensions()
        .iter()
        .find(|extension| extension.oid.to_id_string() == "1.3.6.1.4.1.11129.2.1.21")
        .unwrap();
    assert!(extension.value.ends_with(b"test:///1") && !extension.critical);
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth);
    assert!(!certificate.is_ca());
    let lifetime = certificate.validity().not_after.timestamp() - unix_now();
    assert!((3590..=3600).contains(&lifetime), "{lifetime}");
    let back = unix_now() - certificate.validity().not_before.timestamp();
    assert!((300..=310).contains(&back), "{back}");

    let node = Caller::with_certificate(
        &server,
        &KeyAndCertificate {
            certificate_pem,
            key_pem,
        },
    );
    node.post(CSRS, &csr("b", "n1"));
    assert_eq!(server.csr("b").unwrap()["spec"]["uid"], "0123.1");
}

fn unix_now() -> i64 {
    let since = now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

#[test]
fn a_lifetime_can_be_given() {
    let der = der(&pem(&status_after(Signer::issue_for(2 * HOUR))));
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();

    let lifetime = certificate.validity().not_after.timestamp() - unix_now();

    assert!((7190..=7200).contains(&lifetime), "{lifetime}");
}

#[test]
fn decisions_without_a_certificate() {
    let cases = [
        (
            Signer::deny("AnotherMachine", "no"),
            "Denied",
            "AnotherMachine",
        ),
        (
            Signer::fail("EvidenceExpired", "late"),
            "Failed",
            "EvidenceExpired",
        ),
        (Signer::ApproveOnly, "Approved", "TestSigner"),
    ];
    for (signer, kind, reason) in cases {
        let status = status_after(signer);
        assert_eq!(status["conditions"][0]["type"], kind);
        assert_eq!(status["conditions"][0]["reason"], reason);
        assert!(status.get("certificate").is_none());
    }
    assert_eq!(status_after(Signer::Off), serde_json::json!({}));
}

#[test]
fn certificates_with_one_flaw() {
    let timestamp = unix_now();
    flawed(Flaw::AnotherName, |it| {
        it.subject().to_string().contains("system:node:another")
    });
    flawed(Flaw::AnotherUsage, |it| {
        it.extended_key_usage()
            .unwrap()
            .is_some_and(|usage| usage.value.server_auth)
    });
    flawed(Flaw::Expired, |it| {
        it.validity().not_after.timestamp() < timestamp
    });
    flawed(Flaw::NotYetValid, |it| {
        it.validity().not_before.timestamp() > timestamp
    });
    flawed(Flaw::AnotherIssuer, |it| {
        it.issuer().to_string() == "CN=another"
    });
    flawed(Flaw::AnotherKey, |it| {
        it.subject().to_string().contains("node-1")
    });
    assert!(
        pem(&status_after(Signer::flawed(Flaw::Garbage))).starts_with("-----BEGIN CERTIFICATE")
    );
    assert_eq!(pem(&status_after(Signer::flawed(Flaw::NoPem))), "not PEM\n");
}

#[test]
fn requests_for_kubernetes_own_signers_are_left_alone() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let mut body = csr("a", "node-1");
    body["spec"]["signerName"] = "kubernetes.io/kubelet-serving".into();
    Caller::bootstrap(&server).post(CSRS, &body);

    server.approve_and_issue("a");

    assert_eq!(server.csr("a").unwrap()["status"], serde_json::json!({}));
}
