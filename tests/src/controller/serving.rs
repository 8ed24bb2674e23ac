//! Requests for serving certificates, as kubelets file them.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::BUILT_IN_SERVING_SIGNER;
use kubelet_authenticator_test_support::process::poll;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};
use x509_parser::oid_registry::Oid;

use super::{Bed, PATIENCE, certificate_of, is_answered, reason_of};

/// A request for a serving certificate by a node that has joined.
#[derive(Debug, Clone, Copy)]
pub struct ServingRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// The node's name.
    pub node: &'a str,
    /// The signer.
    pub signer: &'a str,
    /// The UID in the node's certificate.
    pub uid: &'a str,
    /// The address that it is for.
    pub address: IpAddr,
}

/// The UID in the certificate of this answer.
#[track_caller]
pub fn uid_of(csr: &Value) -> String {
    let pem = certificate_of(csr).expect("a certificate");
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&pem.contents).unwrap();
    let oid = Oid::from(&[1, 3, 6, 1, 4, 1, 57683, 2]).unwrap();
    let uid = certificate.subject().iter_by_oid(&oid).next().unwrap();
    uid.as_str().unwrap().to_owned()
}

impl Bed {
    /// Files the request.
    pub fn ask_to_serve(&self, asked: &ServingRequest<'_>) {
        let user = format!("system:node:{}", asked.node);
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let subject = &mut params.distinguished_name;
        subject.push(DnType::OrganizationName, "system:nodes");
        subject.push(DnType::CommonName, &*user);
        params.subject_alt_names = vec![SanType::IpAddress(asked.address)];
        let request = params.serialize_request(&KeyPair::generate().unwrap());
        let request = request.unwrap().pem().unwrap().replace("\r\n", "\n");
        self.server.put_csr(json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": asked.name},
            "spec": {
                "signerName": asked.signer,
                "usages": SERVING_USAGES,
                "request": STANDARD.encode(request),
                "username": user,
                "uid": asked.uid,
                "groups": ["system:nodes", "system:authenticated"],
            },
        }));
    }

    /// Files the request, and waits until it is decided.
    #[track_caller]
    pub fn asked_to_serve(&self, asked: &ServingRequest<'_>) -> Value {
        self.ask_to_serve(asked);
        // What we sign ourselves is approved first, and issued by another write.
        let is_decided = |csr: &Value| {
            let approved = reason_of(csr, "Approved").is_some();
            is_answered(csr) || approved && asked.signer == BUILT_IN_SERVING_SIGNER
        };
        poll(PATIENCE, || self.server.csr(asked.name).filter(is_decided))
            .unwrap_or_else(|| panic!("no answer: {:#?}", self.server.csr(asked.name)))
    }
}
