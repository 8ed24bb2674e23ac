//! An instance and its services.

use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::csr::subject;
use kubelet_attestation::evidence::aws::AwsEvidence;
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use kubelet_authenticator_test_support::api_server::{ApiServer, Issuance, Signer};
use kubelet_authenticator_test_support::imds::{Credentials, Imds, Instance, Profile};
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::{Principal, Sts};
use kubelet_authenticator_tests::node::{Node, PATIENCE, Run, Started};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub const AWS: &str = "kubelet-authenticator-aws";

pub const ACCOUNT: &str = "123456789012";
pub const REGION: &str = "eu-west-1";
pub const ZONE: &str = "eu-west-1a";
pub const INSTANCE: &str = "i-0123456789abcdef0";
pub const PROVIDER_ID: &str = "aws:///eu-west-1a/i-0123456789abcdef0";
/// The name of the instance in EC2, and of its node.
pub const NAME: &str = "ip-10-0-0-1.eu-west-1.compute.internal";
pub const ROLE: &str = "nodes";

pub const HOUR: Duration = Duration::from_secs(3600);

/// All tests share this key, because it takes a long time to generate.
static SIGNER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new([0x81; 8]));

pub struct Bed {
    pub server: ApiServer,
    pub imds: Imds,
    pub sts: Sts,
    pub node: Node,
}

/// The contents of a certificate signing request.
pub struct Sent {
    pub evidence: AwsEvidence,
    pub provider_id: ProviderId,
    pub node_name: NodeName,
    pub spki: Vec<u8>,
}

impl Bed {
    /// Creates an instance that is ready to join. The node's settings contain the STS endpoint.
    pub fn new() -> Self {
        let mut bed = Self::calling_its_regions_sts();
        let host = bed.sts.host();
        bed.node.set("aws.stsEndpoint", host);
        bed
    }

    /// Like [`new`](Self::new), but the plugin signs for the STS endpoint in its region.
    pub fn calling_its_regions_sts() -> Self {
        let server = ApiServer::start();
        server.set_signer(Signer::issue());
        let sts = Sts::start();
        let profile = Principal::instance_profile(ACCOUNT, ROLE, INSTANCE);
        let imds = Imds::start(Instance {
            local_hostname: NAME.to_owned(),
            identity_credentials: Some(credentials(&sts, Principal::instance(ACCOUNT, INSTANCE))),
            profile: Some(Profile {
                role: ROLE.to_owned(),
                credentials: credentials(&sts, profile),
            }),
            ..Instance::new(REGION, ZONE, INSTANCE)
        });
        let mut node = Node::new(AWS, &server);
        node.set("nodeName", NAME);
        node.unset("providerID");
        node.set("aws.metadataEndpoint", imds.url());
        let bed = Self {
            server,
            imds,
            sts,
            node,
        };
        bed.set_document(&Document::new(ACCOUNT, REGION, ZONE, INSTANCE));
        bed
    }

    /// Sets the instance's document, with a signature.
    pub fn set_document(&self, document: &Document) {
        let rsa2048 = SIGNER.sign(document);
        self.imds.update(|instance| {
            instance.document = document.to_json().into_bytes();
            instance.rsa2048 = rsa2048;
        });
    }

    /// From now on, issues certificates that are immediately due for renewal.
    pub fn issue_old_certificates(&self) {
        self.server.set_signer(Signer::Issue(Issuance {
            lifetime: Some(HOUR),
            backdate: 3 * HOUR,
            ..Issuance::default()
        }));
    }

    /// Runs the plugin as client-go does, with the most verbose output.
    #[track_caller]
    pub fn run(&self) -> Run {
        self.finish(self.start())
    }

    /// Starts the plugin as client-go does.
    pub fn start(&self) -> Started {
        self.node.start(&["credential", "--verbose"])
    }

    /// Waits until the run ends, and checks that its output does not contain a secret.
    #[track_caller]
    pub fn finish(&self, run: Started) -> Run {
        let run = run.finish();
        self.assert_no_secret_in(&run.stderr);
        for secret in self.secrets() {
            assert!(!run.stdout.contains(&secret), "a secret on stdout");
        }
        run
    }

    #[track_caller]
    pub fn assert_no_secret_in(&self, text: &str) {
        for secret in self.secrets() {
            assert!(!text.contains(&secret), "a secret in {text}");
        }
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }

    /// All secrets that logs must not contain: the instance's credentials, and values derived from them.
    fn secrets(&self) -> Vec<String> {
        let mut secrets = Vec::new();
        self.imds.update(|instance| {
            let profile = instance.profile.as_ref().map(|it| &it.credentials);
            let given = instance.identity_credentials.iter().chain(profile);
            for credentials in given {
                secrets.push(credentials.access_key_id.clone());
                secrets.push(credentials.secret_access_key.clone());
                secrets.push(credentials.session_token.clone());
            }
        });
        for body in self.server.created_bodies() {
            if let Some(sent) = sent(&body) {
                secrets.push(sent.evidence.sts.signature.to_owned());
            }
        }
        secrets
    }

    /// The contents of the last request.
    #[track_caller]
    pub fn sent(&self) -> Sent {
        sent(self.server.created_bodies().last().unwrap()).unwrap()
    }

    /// The audience that is derived from the cluster's CA.
    pub fn audience(&self) -> Audience {
        Audience::of_ca(&self.server.authority().certificate_der())
    }

    /// SHA-256 of the document.
    pub fn document_digest(&self) -> [u8; 32] {
        let mut digest = [0; 32];
        self.imds
            .update(|instance| digest = Sha256::digest(&instance.document).into());
        digest
    }

    /// The secret access key of the instance identity role.
    pub fn identity_secret(&self) -> String {
        let mut secret = String::new();
        self.imds.update(|instance| {
            let credentials = instance.identity_credentials.as_ref();
            secret.clone_from(&credentials.unwrap().secret_access_key);
        });
        secret
    }

    /// Runs the plugin until its back-off has ended and it has a credential.
    #[track_caller]
    pub fn succeed_in_the_end(&self) {
        let joined = poll(PATIENCE, || (self.run().code == Some(0)).then_some(()));
        assert!(joined.is_some());
    }

    /// The paths that were read from the metadata service, in order.
    pub fn reads(&self) -> Vec<String> {
        let requests = self.imds.requests().into_iter();
        requests
            .filter(|request| request.method == "GET")
            .map(|request| request.path)
            .collect()
    }
}

/// Creates credentials that STS recognizes, in the format of the metadata service.
pub fn credentials(sts: &Sts, principal: Principal) -> Credentials {
    let known = sts.credentials(principal);
    Credentials {
        access_key_id: known.access_key_id.clone(),
        secret_access_key: known.secret_access_key.clone(),
        session_token: known.session_token.clone(),
        expiration: known.expiration,
    }
}

fn sent(body: &[u8]) -> Option<Sent> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let request = STANDARD.decode(body["spec"]["request"].as_str()?).ok()?;
    let envelope = Envelope::parse(&request).ok()?;
    let csr = CertificationRequest::from_der(&envelope.csr).ok()?;
    Some(Sent {
        evidence: AwsEvidence::parse(&envelope.evidence?).ok()?,
        provider_id: csr.claimed_provider_id()?,
        node_name: subject::node_name(csr.subject()).ok()?,
        spki: csr.spki_der().to_vec(),
    })
}
