//! Machines that prove their identity with their TPMs: a manager's configuration for these machines, and the requests
//! on their behalf. The requests are created by hand, from parts that can belong to different machines.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::tpm::{
    Challenge, Enrolment, PublicAreas, Quote, Registers, Response, TpmEvidence,
};
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::api_server::ApiServer;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::tpm_machine::{self, TpmMachine};
use node_attestation_core::crd::TpmSettings;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::controller::Application;
use crate::node::Node;

/// The name of the plugin.
pub const PLUGIN: &str = "kubelet-authenticator-tpm";

/// The registers that the plugin quotes by default.
pub const REGISTERS: [u8; 14] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14];

/// The keys of a manager that challenges TPMs, and its requirements.
///
/// Managers that have the same keys are replicas.
#[derive(Debug)]
pub struct Challenger {
    scratch: Scratch,
    settings: TpmSettings,
}

impl Challenger {
    /// Creates a directory with one challenge key, for a manager with these settings, which are the value of
    /// `spec.tpm` in a `KubeletAuthentication`.
    pub fn new(settings: &TpmSettings) -> Self {
        let challenger = Self {
            scratch: Scratch::new("challenger"),
            settings: settings.clone(),
        };
        fs::create_dir(challenger.keys()).unwrap();
        challenger.write("current", &new_key());
        challenger
    }

    /// The manager's command-line options.
    pub fn arguments(&self) -> Vec<OsString> {
        vec!["--tpm-challenge-keys".into(), self.keys().into()]
    }

    /// The fields in the spec for a controller without a management cluster.
    pub fn spec(&self) -> Value {
        json!({"authorizedAttestors": ["tpm"], "tpm": self.settings})
    }

    fn write(&self, name: &str, digits: &str) {
        // Replace the file in one step, because the manager reads it for each request.
        let new = self.scratch.write("key.new", digits);
        fs::rename(new, self.keys().join(name)).unwrap();
    }

    fn keys(&self) -> PathBuf {
        self.scratch.join("keys")
    }
}

/// 32 random bytes in hexadecimal.
fn new_key() -> String {
    let mut bytes = [0; 32];
    let mut source = File::open("/dev/urandom").unwrap();
    source.read_exact(&mut bytes).unwrap();
    hex(&bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 digest of the machine's endorsement key (SPKI), in hexadecimal.
pub fn endorsement_key(machine: &TpmMachine) -> String {
    hex(&Sha256::digest(machine.ek_spki()))
}

/// The provider ID for a machine whose only identifier is its TPM.
pub fn provider_id(machine: &TpmMachine) -> String {
    format!("tpm://{}", endorsement_key(machine))
}

/// The machine with the real plugin, using a bootstrap token that no controller lists.
pub fn node(machine: &TpmMachine, server: &ApiServer) -> Node {
    let mut node = Node::new(PLUGIN, server);
    node.unset("providerID");
    node.set("tpm.tcti", machine.tpm().tcti());
    node
}

/// A requester of certificates, with one key and the claims in its requests.
#[derive(Debug, Clone)]
pub struct Requester {
    /// The cluster in its evidence.
    pub audience: Audience,
    /// The machine's provider ID.
    pub provider_id: String,
    /// The node's name.
    pub node_name: String,
    key_pem: String,
}

impl Requester {
    /// Creates a requester with a new key, for the cluster that has this CA (PEM).
    pub fn new(ca_pem: &str, provider_id: &str, node_name: &str) -> Self {
        let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap();
        Self {
            audience: Audience::of_ca(&ca),
            provider_id: provider_id.to_owned(),
            node_name: node_name.to_owned(),
            key_pem: KeyPair::generate().unwrap().serialize_pem(),
        }
    }

    /// The enrollment of this machine: a valid first request.
    #[track_caller]
    pub fn enrolment(&self, machine: &TpmMachine) -> Enrolment {
        Enrolment {
            header: self.header(),
            certificate: machine.ek_certificate(),
            intermediates: Vec::new(),
            keys: keys_of(machine),
        }
    }

    /// The data that the machine's quote must cover after the machine has opened the challenge: the key binding.
    pub fn qualifying_data(&self, challenge: &Challenge, secret: &[u8]) -> [u8; 32] {
        let key = KeyPair::from_pem(&self.key_pem).unwrap();
        let binding = KeyBinding::new(
            &Provider::TPM,
            &self.audience,
            &ProviderId::parse(&self.provider_id).unwrap(),
            &NodeName::parse(&self.node_name).unwrap(),
            &key.subject_public_key_info(),
            &[challenge.id.as_bytes(), secret],
        );
        *binding.as_bytes()
    }

    /// The response of this machine: a valid second request.
    ///
    /// # Panics
    ///
    /// Panics if the TPM cannot open the challenge.
    #[track_caller]
    pub fn response(&self, machine: &TpmMachine, challenge: &Challenge) -> Response {
        let opened = machine.activate(&challenge.credential_blob, &challenge.encrypted_secret);
        self.response_with(machine, challenge, &opened.unwrap())
    }

    /// The response of this machine with `secret` instead of the challenge's secret.
    #[track_caller]
    pub fn response_with(
        &self,
        machine: &TpmMachine,
        challenge: &Challenge,
        secret: &[u8],
    ) -> Response {
        let data = self.qualifying_data(challenge, secret);
        Response {
            header: self.header(),
            id: challenge.id,
            expiry: challenge.expiry.clone(),
            keys: keys_of(machine),
            quote: quote_of(machine.quote(&data, &REGISTERS)),
        }
    }

    /// The request that contains this evidence.
    pub fn carrying(&self, evidence: &TpmEvidence) -> Application {
        Application::of_key(
            &self.key_pem,
            (&self.node_name, &self.provider_id),
            Provider::TPM,
            Some(evidence.to_json()),
        )
    }

    fn header(&self) -> Header {
        Header {
            version: EvidenceVersion::V1,
            audience: self.audience.clone(),
        }
    }
}

/// The public areas of the machine's keys.
#[track_caller]
pub fn keys_of(machine: &TpmMachine) -> PublicAreas {
    PublicAreas {
        endorsement: machine.ek_public(),
        attestation: machine.ak_public(),
    }
}

/// A quote in the format that evidence uses.
pub fn quote_of(quote: tpm_machine::Quote) -> Quote {
    Quote {
        attest: quote.attest,
        signature: quote.signature,
        registers: Registers::new(quote.registers).unwrap(),
    }
}

/// The contents of a request from a machine with a TPM.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The request's name.
    pub name: String,
    /// The evidence.
    pub evidence: TpmEvidence,
    /// The bytes of the evidence, as received.
    pub raw: Vec<u8>,
    /// The claimed provider ID.
    pub provider_id: ProviderId,
    /// The node in the request.
    pub node_name: NodeName,
    /// The request's key (SPKI).
    pub spki: Vec<u8>,
}

impl Sent {
    /// Parses a request from a machine with a TPM.
    #[track_caller]
    pub fn read(csr: &Value) -> Self {
        let request = STANDARD.decode(csr["spec"]["request"].as_str().unwrap());
        let envelope = Envelope::parse(&request.unwrap()).unwrap();
        let csr_der = CertificationRequest::from_der(&envelope.csr).unwrap();
        let raw = envelope.evidence.unwrap();
        Self {
            name: csr["metadata"]["name"].as_str().unwrap().to_owned(),
            evidence: TpmEvidence::parse(&raw).unwrap(),
            raw,
            provider_id: csr_der.claimed_provider_id().unwrap(),
            node_name: subject::node_name(csr_der.subject()).unwrap(),
            spki: csr_der.spki_der().to_vec(),
        }
    }

    /// The version of the request's evidence.
    pub fn version(&self) -> &EvidenceVersion {
        match &self.evidence {
            TpmEvidence::Enrol(enrolment) => &enrolment.header.version,
            TpmEvidence::Respond(response) => &response.header.version,
        }
    }
}
