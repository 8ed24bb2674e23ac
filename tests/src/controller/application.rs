//! Requests from kubelets, and their outcomes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::CLIENT_USAGES;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::names::{Audience, Provider, csr_name};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::pki::{Subject, certificate_request_with};
use kubelet_authenticator_test_support::process::poll;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use serde_json::{Value, json};
use x509_parser::pem::parse_x509_pem;

use super::{Machine, PATIENCE};

/// A kubelet's request under construction. It is initially valid.
#[derive(Debug, Clone)]
pub struct Application {
    provider: Provider,
    token: String,
    request: Vec<u8>,
    key_pem: String,
}

impl Application {
    /// Creates a request from a machine without evidence.
    pub fn insecure(machine: Machine) -> Self {
        Self::new(machine, Provider::INSECURE, None)
    }

    /// Creates a request from a machine with a rubber stamp for the cluster that has this CA.
    pub fn null(machine: Machine, ca_pem: &str) -> Self {
        Self::new(machine, Provider::NULL, Some(stamp(ca_pem)))
    }

    /// Creates a request with this provider and evidence.
    pub fn new(machine: Machine, provider: Provider, evidence: Option<Vec<u8>>) -> Self {
        let mut application =
            Self::claiming(machine.name, &machine.provider_id(), provider, evidence);
        machine.token.clone_into(&mut application.token);
        application
    }

    /// Creates a request with a rubber stamp for the cluster that has this CA, for any node and machine.
    pub fn stamped(node_name: &str, provider_id: &str, ca_pem: &str) -> Self {
        Self::claiming(node_name, provider_id, Provider::NULL, Some(stamp(ca_pem)))
    }

    /// Creates a request for any node and machine, without a token.
    pub fn claiming(
        node_name: &str,
        provider_id: &str,
        provider: Provider,
        evidence: Option<Vec<u8>>,
    ) -> Self {
        Self::proving(node_name, provider_id, provider, |_| evidence)
    }

    /// Creates a request for any node and machine. `evidence` receives the DER of the `SubjectPublicKeyInfo` of the
    /// request's key.
    pub fn proving(
        node_name: &str,
        provider_id: &str,
        provider: Provider,
        evidence: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Self {
        let key = KeyPair::generate().unwrap();
        let evidence = evidence(&key.subject_public_key_info());
        Self::of_key(
            &key.serialize_pem(),
            (node_name, provider_id),
            provider,
            evidence,
        )
    }

    /// Creates a request for any node and machine, with an existing key (PKCS#8 PEM).
    pub fn of_key(
        key_pem: &str,
        (node_name, provider_id): (&str, &str),
        provider: Provider,
        evidence: Option<Vec<u8>>,
    ) -> Self {
        let subject = Subject::node(node_name);
        let csr = certificate_request_with(key_pem, &subject, Some(provider_id));
        let csr = CertificateSigningRequestDer::from_pem_slice(csr.as_bytes()).unwrap();
        let envelope = Envelope {
            csr: csr.to_vec(),
            provider: Some(provider.clone()),
            evidence,
        };
        Self {
            provider,
            token: String::new(),
            request: envelope.encode(),
            key_pem: key_pem.to_owned(),
        }
    }

    /// Sets the ID of the bootstrap token that sends the request.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// Uses the bootstrap token of another machine.
    #[must_use]
    pub fn with_token_of(mut self, other: Machine) -> Self {
        other.token.clone_into(&mut self.token);
        self
    }

    /// The request's name.
    pub fn name(&self) -> String {
        csr_name(
            &self.provider.client_signer(),
            &CLIENT_USAGES,
            &self.request,
        )
    }

    /// The value of `spec.request`.
    pub fn request(self) -> Vec<u8> {
        self.request
    }

    /// The ID of the bootstrap token that sends the request.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The request's key, as PKCS#8 PEM.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// The object that the node sends.
    pub fn to_json(&self) -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": self.name()},
            "spec": {
                "signerName": self.provider.client_signer(),
                "usages": CLIENT_USAGES,
                "request": STANDARD.encode(&self.request),
            },
        })
    }

    /// The object that the API server stores if the holder of the token sends the request.
    fn to_stored(&self) -> Value {
        let mut object = self.to_json();
        object["spec"]["username"] = format!("system:bootstrap:{}", self.token).into();
        object["spec"]["groups"] = json!([
            "system:bootstrappers",
            "system:bootstrappers:kubeadm:default-node-token",
            "system:authenticated",
        ]);
        object
    }

    /// Stores the request in the in-memory API server, as if the user of the token had sent it. Returns its name.
    pub fn put(&self, server: &ApiServer) -> String {
        server.put_csr(self.to_stored());
        self.name()
    }
}

/// A rubber stamp that is valid for the cluster that has this CA.
fn stamp(ca_pem: &str) -> Vec<u8> {
    let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap();
    let evidence = Header {
        version: EvidenceVersion::V1,
        audience: Audience::of_ca(&ca),
    };
    evidence.to_json()
}

/// The reason in the request's condition of this type.
pub fn reason_of<'a>(csr: &'a Value, condition: &str) -> Option<&'a str> {
    csr["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|found| found["type"] == condition)?["reason"]
        .as_str()
}

/// The issued certificate, as PEM.
pub fn certificate_of(csr: &Value) -> Option<String> {
    let encoded = csr["status"]["certificate"].as_str()?;
    Some(String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap())
}

/// Whether `ca` (PEM) signed the certificate (PEM).
pub fn is_signed_by(certificate: &str, ca: &str) -> bool {
    let [certificate, ca] = [certificate, ca].map(|pem| parse_x509_pem(pem.as_bytes()).unwrap().1);
    let ca = ca.parse_x509().unwrap();
    let certificate = certificate.parse_x509().unwrap();
    certificate.verify_signature(Some(ca.public_key())).is_ok()
}

/// Waits until the request in the in-memory API server satisfies `wanted`. Returns the request.
#[track_caller]
pub fn wait_for_csr(server: &ApiServer, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    poll(PATIENCE, || server.csr(name).filter(&wanted)).unwrap_or_else(|| {
        panic!(
            "the request never reached this state: {:#?}",
            server.csr(name)
        )
    })
}

/// Whether the request was issued, was denied, or failed.
pub fn is_answered(csr: &Value) -> bool {
    is_issued(csr)
        || ["Denied", "Failed"]
            .iter()
            .any(|kind| reason_of(csr, kind).is_some())
}

/// Whether the request has a certificate.
pub fn is_issued(csr: &Value) -> bool {
    certificate_of(csr).is_some()
}
