//! Requests that an attacker can write: the valid request, in which every part can be changed.

#![expect(
    missing_docs,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "it is for tests, and where it cannot go on the test fails"
)]

pub mod cluster;
mod csr;
pub mod der;
pub mod faulty_records;
mod ledger;
pub mod nodes;
pub mod records;
pub mod serving;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use kubelet_attestation::names::Provider;

pub use cluster::{cluster, cluster_of_nodes, decided, decided_at, denied, issued_at, now};
pub use csr::{Csr, NODE_CN, PROVIDER_ID_OID, extension};
pub use ledger::Uids;

pub const EVIDENCE: &[u8] = br#"{"version":"v1","audience":"test"}"#;
pub const UID: &str = "000102030405060708090a0b0c0d0e0f.1";

/// Runs a future that waits only for other tasks. Returns its output, and the number of times that it paused.
pub fn pauses<T>(future: impl Future<Output = T>) -> (T, usize) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    let mut count = 0;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return (output, count);
        }
        count += 1;
    }
}

/// The `spec.request` of the valid request, with this certification request in it.
pub fn envelope(csr_der: &[u8]) -> String {
    [
        block("CERTIFICATE REQUEST", csr_der),
        provider_block("null"),
        evidence_block(EVIDENCE),
    ]
    .concat()
}

pub fn provider_block(name: &str) -> String {
    block(
        "KUBELET AUTHENTICATOR ATTESTATION PROVIDER",
        name.as_bytes(),
    )
}

pub fn evidence_block(evidence: &[u8]) -> String {
    block("KUBELET AUTHENTICATOR ATTESTATION DATA", evidence)
}

pub fn block(label: &str, content: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, content), config)
}

/// The object of a machine that joins with its bootstrap token.
pub fn object(request: impl Into<Vec<u8>>) -> CertificateSigningRequest {
    CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            expiration_seconds: None,
            extra: None,
            groups: Some(texts(&[
                "system:bootstrappers",
                "system:bootstrappers:kubeadm:default-node-token",
                "system:authenticated",
            ])),
            request: ByteString(request.into()),
            signer_name: Provider::NULL.client_signer(),
            uid: None,
            usages: Some(texts(&["digital signature", "client auth"])),
            username: Some("system:bootstrap:abcdef".to_owned()),
        },
        ..CertificateSigningRequest::default()
    }
}

/// The valid request.
pub fn valid() -> CertificateSigningRequest {
    object(envelope(&Csr::valid().der()))
}

/// The PKCS #10 request of a machine for a node name.
pub fn for_machine(provider_id: &str, node: &str) -> Vec<u8> {
    let mut csr = Csr::valid();
    csr.subject[1] = Csr::part("2.5.4.3", der::utf8(&format!("system:node:{node}")));
    csr.extensions = vec![extension(PROVIDER_ID_OID, false, &der::utf8(provider_id))];
    csr.der()
}

/// The request of machine `m2` for a node name, with the machine's own token.
pub fn of_m2(node: &str) -> CertificateSigningRequest {
    let mut request = object(envelope(&for_machine("metal:///rack/m2", node)));
    request.spec.username = Some("system:bootstrap:ghijkl".to_owned());
    request
}

/// The valid request of the node itself, which uses the certificate with this UID.
pub fn renewal(uid: &str) -> CertificateSigningRequest {
    let mut object = valid();
    object.spec.username = Some("system:node:n1".to_owned());
    object.spec.groups = Some(texts(&["system:nodes", "system:authenticated"]));
    object.spec.uid = Some(uid.to_owned());
    object
}

/// The valid request of a machine without evidence.
pub fn insecure() -> CertificateSigningRequest {
    let mut object = object(block("CERTIFICATE REQUEST", &Csr::valid().der()));
    object.spec.signer_name = Provider::INSECURE.client_signer();
    object
}

pub fn condition(kind: &str) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        ..CertificateSigningRequestCondition::default()
    }
}

pub fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}
