//! A Cluster with EC2 instances and with hosts that have TPMs, one node of each kind, and the requests on their behalf.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_attestation::evidence::tpm::{CHALLENGE_ANNOTATION, Challenge, TpmEvidence};
use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::control_plane::User;
use kubelet_authenticator_test_support::kubelet::{Kubelet, KubeletBuilder};
use kubelet_authenticator_test_support::pki::KeyAndCertificate;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::cloud::{Cloud, Instance};
use kubelet_authenticator_tests::controller::{Application, certificate_of, reason_of};
use kubelet_authenticator_tests::fleet::{
    Manager, allow_short_certificates, authorize, kubelet_of_instance, kubelet_of_tpm, management,
};
use kubelet_authenticator_tests::management::{Machine, owned};
use kubelet_authenticator_tests::scene::{Scene, Site};
use kubelet_authenticator_tests::tpm::{Requester, provider_id};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

/// A lifetime for which the renewal is after 60 to 84 seconds. The values that a test reads from the store remain valid
/// until the renewal.
const SECONDS: u32 = 120;

/// A lease duration that makes the kubelet send frequent requests, so that a renewal happens soon after it is due.
const LEASE: u32 = 12;

/// A challenge key in the format of `openssl rand -hex 32`, but not random.
const KEY: &str = "0f";

/// A node, and the machine on which it runs.
pub struct Node<M> {
    pub machine: Machine,
    pub kubelet: Kubelet,
    pub proof: M,
}

/// The Cluster, and the cloud for its instances.
pub struct Bed {
    pub scene: Scene,
    pub cloud: Cloud,
    _keys: Scratch,
}

/// One node of each kind.
pub struct Nodes {
    pub instance: Node<Instance>,
    pub host: Node<TpmMachine>,
}

impl Bed {
    pub fn start() -> Self {
        Self::authorizing(&["aws", "tpm"])
    }

    pub fn authorizing(attestors: &[&str]) -> Self {
        let cloud = Cloud::start();
        let management = management();
        allow_short_certificates(&management);
        let keys = Scratch::new("challenge-keys");
        keys.write("current", KEY.repeat(32));
        let path = keys.path().display().to_string();
        let manager = Manager::aws(&management, &cloud, &["--tpm-challenge-keys", &path]);
        let cluster = management.cluster("prod-1").namespace("both").create();
        let settings = json!({
            "certificate": {"expirationSeconds": SECONDS},
            "tpm": {"endorsementKeys": {"platform": "aws"}},
        });
        let authentication = authorize(&management, &cluster, attestors, settings);
        authentication.wait_until_ready(management.kubectl());
        let site = Site {
            management,
            manager,
        };
        let scene = Scene {
            site: site.into(),
            cluster,
            authentication,
        };
        Self {
            scene,
            cloud,
            _keys: keys,
        }
    }

    /// Launches an instance in the cluster that does not have a Machine.
    pub fn launch(&self) -> Instance {
        self.cloud.launch(&[(&owned("prod-1"), "owned")])
    }

    /// Creates a Machine for this instance.
    pub fn machine_of(&self, name: &str, instance: &Instance) -> Machine {
        let builder = self.scene.cluster.machine(name);
        let builder = builder.provider_id(&instance.provider_id());
        builder.node_name(instance.node_name()).create()
    }

    /// Creates a Machine for the host with this TPM.
    pub fn machine_with(&self, name: &str, tpm: &TpmMachine) -> Machine {
        let builder = self.scene.cluster.machine(name);
        builder.provider_id(&provider_id(tpm)).create()
    }

    /// Creates a request with evidence from this instance.
    pub fn by_aws(&self, of: &Instance, node_name: &str, provider_id: &str) -> Application {
        let audience = self.audience();
        let now = self.cloud.sts().now();
        let mut parts = of.parts(&audience, provider_id, now);
        parts.node_name = node_name;
        let evidence = |spki: &[u8]| Some(self.cloud.evidence(&parts, spki));
        Application::proving(node_name, provider_id, Provider::AWS, evidence)
    }

    /// Creates a first request with evidence from this TPM.
    pub fn by_tpm(&self, of: &TpmMachine, node_name: &str, provider_id: &str) -> Application {
        let requester = self.requester(node_name, provider_id);
        requester.carrying(&TpmEvidence::Enrol(requester.enrolment(of)))
    }

    /// The answer to both requests from a machine with this TPM: the issued request, or the first refused request.
    pub fn enrol(&self, kubeconfig: &Path, of: &TpmMachine, names: (&str, &str)) -> Answer {
        let requester = self.requester(names.0, names.1);
        let first = requester.carrying(&TpmEvidence::Enrol(requester.enrolment(of)));
        let csr = self.scene.answer(&self.scene.file(kubeconfig, &first));
        let annotation = csr["metadata"]["annotations"][CHALLENGE_ANNOTATION].as_str();
        let Some(annotation) = annotation.filter(|_| is_challenged(&csr)) else {
            return Answer {
                application: first,
                csr,
            };
        };
        let challenge = Challenge::parse(annotation).unwrap();
        let response = requester.response(of, &challenge);
        let application = requester.carrying(&TpmEvidence::Respond(response));
        let csr = self
            .scene
            .answer(&self.scene.file(kubeconfig, &application));
        Answer { application, csr }
    }

    /// Sends the request, and waits for the answer.
    pub fn ask(&self, kubeconfig: &Path, application: Application) -> Answer {
        let csr = self
            .scene
            .answer(&self.scene.file(kubeconfig, &application));
        Answer { application, csr }
    }

    /// Like [`ask`](Self::ask), but sends the request to this provider's signer, regardless of the content of the
    /// request.
    pub fn ask_signer_of(
        &self,
        provider: &Provider,
        kubeconfig: &Path,
        application: Application,
    ) -> Answer {
        let mut object = application.to_json();
        object["spec"]["signerName"] = provider.client_signer().into();
        let plane = self.scene.cluster.control_plane();
        plane.kubectl_with(kubeconfig).create_object(&object);
        let csr = self.scene.answer(&application.name());
        Answer { application, csr }
    }

    /// A kubeconfig that contains this kubelet's current certificate.
    pub fn certificate_of(&self, kubelet: &Kubelet) -> PathBuf {
        let store = kubelet.var_lib().join("kubelet-authenticator");
        let pem = std::fs::read_to_string(store.join("kubelet-client.pem")).unwrap();
        self.kubeconfig(KeyAndCertificate {
            certificate_pem: pem.clone(),
            key_pem: pem,
        })
    }

    /// A kubeconfig that contains the issued certificate.
    #[track_caller]
    pub fn certificate_in(&self, answer: &Answer) -> PathBuf {
        self.kubeconfig(KeyAndCertificate {
            certificate_pem: certificate_of(&answer.csr).expect("a certificate"),
            key_pem: answer.application.key_pem().to_owned(),
        })
    }

    fn kubeconfig(&self, pair: KeyAndCertificate) -> PathBuf {
        let plane = self.scene.cluster.control_plane();
        plane.kubeconfig(User::Certificate(pair))
    }

    fn requester(&self, node_name: &str, provider_id: &str) -> Requester {
        let ca = self.scene.cluster.control_plane().ca();
        Requester::new(ca.certificate_pem(), provider_id, node_name)
    }

    fn audience(&self) -> Audience {
        let ca = self.scene.cluster.control_plane().ca();
        let ca = CertificateDer::from_pem_slice(ca.certificate_pem().as_bytes());
        Audience::of_ca(&ca.unwrap())
    }
}

/// A request with its answer.
pub struct Answer {
    pub application: Application,
    pub csr: Value,
}

impl Answer {
    #[track_caller]
    pub fn is_denied(&self, reason: &str) {
        let csr = &self.csr;
        assert_eq!(reason_of(csr, "Denied"), Some(reason), "{csr:#}");
        assert_eq!(certificate_of(csr), None);
    }

    #[track_caller]
    pub fn is_issued(&self) {
        assert!(certificate_of(&self.csr).is_some(), "{:#}", self.csr);
    }
}

fn is_challenged(csr: &Value) -> bool {
    reason_of(csr, "Failed") == Some("ChallengeIssued")
}

/// Creates a TPM with the endorsement key that the plugin prefers.
pub fn tpm() -> TpmMachine {
    TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P384)
}

impl Nodes {
    /// Starts a kubelet of each kind, and waits until both have joined.
    pub fn join(bed: &Bed) -> Self {
        let (instance, tpm) = (bed.launch(), tpm());
        let first = bed.machine_of("instance-1", &instance);
        let second = bed.machine_with("host-1", &tpm);
        let (cluster, token) = (&bed.scene.cluster, first.token().bearer());
        let plane = cluster.control_plane();
        let of_instance = kubelet_of_instance(plane, &token, &bed.cloud, &instance);
        let of_instance = start(&first, of_instance);
        let of_host = kubelet_of_tpm(cluster, &second, &tpm.tpm().tcti());
        let of_host = start(&second, of_host);
        for kubelet in [&of_instance, &of_host] {
            kubelet.wait_until_ready();
        }
        Self {
            instance: Node {
                machine: first,
                kubelet: of_instance,
                proof: instance,
            },
            host: Node {
                machine: second,
                kubelet: of_host,
                proof: tpm,
            },
        }
    }
}

/// Starts a kubelet at an address that the infrastructure reports.
fn start(machine: &Machine, builder: KubeletBuilder) -> Kubelet {
    let builder = builder.lease_duration(LEASE);
    let builder = builder.server_tls_bootstrap().reachable();
    machine.set_addresses(&[("InternalIP", &builder.ip().to_string())]);
    builder.start()
}
