//! Instances and their requests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::{CLIENT_USAGES, oid};
use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::aws::{
    AwsEvidence, BINDING_HEADER, Proof, ProofFields, STS_ACCEPT, STS_BODY, STS_CONTENT_TYPE,
    STS_SERVICE,
};
use kubelet_attestation::names::{Audience, NODES_GROUP, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};
use kubelet_authenticator_test_support::sts::{
    Credentials, Principal, Signing, Sts as Service, sign,
};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::Machine;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair};
use sha2::{Digest as _, Sha256};
use x509_cert::der::Encode as _;
use x509_cert::der::asn1::Utf8StringRef;

pub(crate) const ACCOUNT: &str = "123456789012";
pub(crate) const REGION: &str = "eu-west-1";
pub(crate) const ZONE: &str = "eu-west-1a";
pub(crate) const CLUSTER: &str = "prod";

/// The time of all signatures and decisions.
const NOW: &str = "20260101T120000Z";

/// The time of all signatures and decisions, from which other times are computed.
pub(crate) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_hours(490_908)
}

/// The launch time of the instances, as in their documents.
pub(crate) fn launch() -> SystemTime {
    now() - Duration::from_hours(12)
}

/// The audience of the evidence, which is the cluster.
pub(crate) fn audience() -> Audience {
    Audience::parse(CLUSTER).unwrap()
}

/// An instance of the cluster.
pub(crate) struct Instance {
    index: usize,
    rsa2048: String,
    digest: [u8; 32],
    credentials: Credentials,
    host: String,
}

impl Instance {
    /// Creates the instance with this number. `signer` signs its document, and `sts` recognizes its credentials.
    pub(crate) fn new(index: usize, signer: &TestSigner, sts: &Service) -> Self {
        let id = id(index);
        let document = Document::new(ACCOUNT, REGION, ZONE, &id);
        Self {
            index,
            rsa2048: signer.sign(&document),
            digest: Sha256::digest(document.to_json()).into(),
            credentials: sts.credentials(Principal::instance(ACCOUNT, &id)),
            host: sts.host(),
        }
    }

    /// The instance's Machine in the cluster.
    pub(crate) fn machine(&self) -> Machine {
        let mut machine = Machine::new(id(self.index));
        machine.provider_id = Some(self.provider_id());
        machine.token_id = Some(TokenId::parse(&token(self.index)).unwrap());
        machine
    }

    pub(crate) fn provider_id(&self) -> ProviderId {
        ProviderId::parse(&format!("aws:///{ZONE}/{}", id(self.index))).unwrap()
    }

    pub(crate) fn node_name(&self) -> NodeName {
        NodeName::parse(&node_name(&id(self.index))).unwrap()
    }

    /// A request with a new key, in the form in which the plugin creates it and the API server stores it.
    pub(crate) fn request(&self) -> CertificateSigningRequest {
        let csr = self.csr();
        let spki = CertificationRequest::from_der(&csr)
            .unwrap()
            .spki_der()
            .to_vec();
        let evidence = AwsEvidence {
            header: Header {
                version: EvidenceVersion::V1,
                audience: audience(),
            },
            rsa2048: self.rsa2048.clone(),
            sts: self.proof(&self.binding(&spki)),
        };
        let envelope = Envelope {
            csr,
            provider: Some(Provider::AWS),
            evidence: Some(evidence.to_json()),
        };
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                signer_name: Provider::AWS.client_signer(),
                request: ByteString(envelope.encode()),
                usages: Some(CLIENT_USAGES.map(str::to_owned).to_vec()),
                username: Some(format!("system:bootstrap:{}", token(self.index))),
                groups: Some(
                    ["system:bootstrappers", "system:authenticated"]
                        .map(str::to_owned)
                        .to_vec(),
                ),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        }
    }

    pub(crate) fn binding(&self, spki: &[u8]) -> KeyBinding {
        let (id, name) = (self.provider_id(), self.node_name());
        KeyBinding::new(
            &Provider::AWS,
            &audience(),
            &id,
            &name,
            spki,
            &[&self.digest],
        )
    }

    fn csr(&self) -> Vec<u8> {
        let provider_id = self.provider_id();
        let value = Utf8StringRef::new(provider_id.as_str()).unwrap();
        let arcs: Vec<u64> = oid::PROVIDER_ID.arcs().map(u64::from).collect();
        let extension = CustomExtension::from_oid_content(&arcs, value.to_der().unwrap());
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let subject = &mut params.distinguished_name;
        subject.push(DnType::OrganizationName, NODES_GROUP);
        subject.push(DnType::CommonName, self.node_name().user_name());
        params.custom_extensions = vec![extension];
        let key = KeyPair::generate().unwrap();
        params.serialize_request(&key).unwrap().der().to_vec()
    }

    fn proof(&self, binding: &KeyBinding) -> Proof {
        let Credentials {
            access_key_id,
            secret_access_key,
            session_token,
            ..
        } = &self.credentials;
        let headers = [
            ("accept", STS_ACCEPT),
            ("content-type", STS_CONTENT_TYPE),
            ("host", &self.host),
            ("x-amz-date", NOW),
            ("x-amz-security-token", session_token),
            (BINDING_HEADER, &binding.to_hex()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let signing = Signing {
            method: "POST",
            path: "/",
            query: "",
            headers: &headers,
            signed_headers: &names,
            body: STS_BODY.as_bytes(),
            time: NOW,
            region: REGION,
            service: STS_SERVICE,
        };
        let signature = sign(&signing, secret_access_key);
        Proof::new(ProofFields {
            region: REGION.to_owned(),
            access_key_id: access_key_id.clone(),
            session_token: session_token.clone(),
            amz_date: NOW.to_owned(),
            signature,
        })
        .unwrap()
    }
}

pub(crate) fn id(index: usize) -> String {
    format!("i-0123456789abc{index:04x}")
}

pub(crate) fn node_name(id: &str) -> String {
    format!("{id}.{REGION}.compute.internal")
}

fn token(index: usize) -> String {
    format!("bench{:x}", index % 16)
}
