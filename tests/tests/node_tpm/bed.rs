//! A machine with a TPM, and a controller that challenges it.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::executor::block_on;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::tpm::{
    CHALLENGE_ANNOTATION, Challenge, ChallengeId, Enrolment, Expiry, Response, TpmEvidence,
};
use kubelet_attestation::names::{Audience, Provider};
use kubelet_attestation::version::SUPPORTED_VERSIONS_ANNOTATION;
use kubelet_authenticator_test_support::api_server::{ApiServer, Issuance, Signer};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::node::{Node, PATIENCE, Run, Started};
use kubelet_authenticator_tests::tpm::{self, Sent};
use node_attestation_core::inventory::Machine;
use node_attestation_core::refusal::{Failure, Refusal};
use node_attestation_core::verifier::{Appraisal, Verifier as _};
use node_attestation_tpm::verifier::TpmVerifier;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub const DEVICE: &str = "kubelet-authenticator-tpm-device";

/// The secret in every challenge.
pub const SECRET: [u8; 32] = [9; 32];

pub struct Bed {
    pub server: ApiServer,
    pub tpm: Arc<Swtpm>,
    pub machine: TpmMachine,
    pub node: Node,
    /// A separate TPM that creates the credentials.
    maker: TpmMachine,
    /// The endorsement key for which the TPM creates credentials: the machine's key, unless a test replaces it.
    pub trusted: Vec<u8>,
    /// Whether certificates are immediately due for renewal.
    pub old: bool,
    /// Whether the controller ignores answers to challenges.
    pub idle: bool,
    /// The verifier that decides instead of the test.
    pub verifier: Option<TpmVerifier>,
    /// The evidence versions that the controller accepts.
    pub versions: &'static [&'static str],
}

impl Bed {
    /// Creates a machine that is ready to join, and whose provider ID is derived from its TPM.
    pub fn new() -> Self {
        Self::with(Swtpm::start())
    }

    /// Creates a machine with this TPM.
    pub fn with(tpm: Swtpm) -> Self {
        let server = ApiServer::start();
        let tpm = Arc::new(tpm);
        let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P384);
        let maker = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P384);
        let node = tpm::node(&machine, &server);
        Self {
            trusted: machine.ek_public(),
            server,
            tpm,
            machine,
            node,
            maker,
            old: false,
            idle: false,
            verifier: None,
            versions: &["v1", "v2"],
        }
    }

    /// Runs the plugin as client-go does, while the controller decides on the plugin's requests.
    #[track_caller]
    pub fn run(&self) -> Run {
        let run = self.controlled(|plugin| plugin.finish());
        let secret = STANDARD.encode(SECRET);
        assert!(!run.stderr.contains(&secret), "{run:#?}");
        assert!(!run.stderr.contains("PRIVATE KEY"), "{run:#?}");
        run
    }

    /// Like [`run`](Self::run), but the controller does not decide on the answer to the challenge. Kills the plugin
    /// after the API server has received the answer and the plugin has recorded this.
    #[track_caller]
    pub fn kill_at_the_answer(&mut self) {
        self.idle = true;
        self.controlled(|mut plugin| {
            let pending = self.node.file("pending.json");
            let answered = poll(PATIENCE, || {
                let pending: Value =
                    serde_json::from_slice(&std::fs::read(&pending).ok()?).unwrap();
                let request = &pending["request"];
                (request["answers"] == true && request["acknowledged"] == true).then_some(())
            });
            plugin.kill();
            assert!(answered.is_some());
        });
        self.idle = false;
    }

    /// The result of a plugin run, while the controller decides on the plugin's requests.
    #[track_caller]
    fn controlled<T>(&self, run: impl FnOnce(Started) -> T) -> T {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let controller = scope.spawn(|| self.control(&over));
            let came = run(self.node.start(&["credential", "--verbose"]));
            over.store(true, Ordering::Relaxed);
            controller.join().unwrap();
            came
        })
    }

    fn control(&self, over: &AtomicBool) {
        let known = |csr: &Value| csr["metadata"]["name"].as_str().unwrap().to_owned();
        let csrs = self.server.csrs();
        let decided = csrs
            .iter()
            .filter(|csr| csr["status"]["conditions"].is_array());
        let mut decided: BTreeSet<String> = decided.map(known).collect();
        let ended = poll(PATIENCE, || {
            // The number is checked again after the plugin ends, because the plugin might have sent another request.
            let last = over.load(Ordering::Relaxed);
            for csr in self.server.csrs() {
                if decided.insert(known(&csr)) {
                    self.decide(csr);
                }
            }
            last.then_some(())
        });
        ended.expect("the plugin ends");
    }

    fn decide(&self, csr: Value) {
        let sent = Sent::read(&csr);
        if !self.versions.contains(&sent.version().as_str()) {
            return self.refuse_version(csr);
        }
        if let Some(verifier) = &self.verifier {
            return self.have_decided(verifier, &sent, csr);
        }
        match &sent.evidence {
            TpmEvidence::Enrol(enrolment) => self.challenge(csr, enrolment),
            TpmEvidence::Respond(_) if self.idle => {}
            TpmEvidence::Respond(response) => {
                self.check(&sent, response);
                let signer = if self.old {
                    Signer::Issue(Issuance {
                        lifetime: Some(Duration::from_secs(3600)),
                        backdate: Duration::from_secs(3 * 3600),
                        ..Issuance::default()
                    })
                } else {
                    Signer::issue()
                };
                self.server.decide(&sent.name, &signer);
            }
        }
    }

    fn have_decided(&self, verifier: &TpmVerifier, sent: &Sent, csr: Value) {
        let mut machine = Machine::new("m1");
        machine.provider_id = Some(sent.provider_id.clone());
        let now = kubelet_authenticator_test_support::clock::now();
        let appraisal = Appraisal {
            evidence: Some(&sent.raw),
            audiences: &[self.audience()],
            provider_id: &sent.provider_id,
            node_name: &sent.node_name,
            spki: &sent.spki,
            machine: &machine,
            asked: now,
        };
        match block_on(verifier.verify(appraisal, now)) {
            Err(Refusal::Fail(Failure::ChallengeIssued { annotations, .. })) => {
                let is_challenge = |(name, _): &(&str, String)| *name == CHALLENGE_ANNOTATION;
                let (_, challenge) = annotations.into_iter().find(is_challenge).unwrap();
                self.fail_with(csr, &Challenge::parse(&challenge).unwrap());
            }
            Ok(_) => self.server.decide(&sent.name, &Signer::issue()),
            other => panic!("{other:?}"),
        }
    }

    fn refuse_version(&self, mut csr: Value) {
        csr["metadata"]["annotations"][SUPPORTED_VERSIONS_ANNOTATION] =
            self.versions.join(",").into();
        csr["status"]["conditions"] = json!([{
            "type": "Failed", "status": "True", "reason": "UnsupportedAttestationVersion",
            "message": "another",
        }]);
        self.server.put_csr(csr);
    }

    fn challenge(&self, csr: Value, enrolment: &Enrolment) {
        let name = [&[0, 0x0b][..], &Sha256::digest(&enrolment.keys.attestation)].concat();
        let made = self.maker.make_credential(&self.trusted, &name, &SECRET);
        let challenge = Challenge {
            id: ChallengeId::new([7; 16]),
            expiry: Expiry::parse("2100-01-01T00:00:00Z").unwrap(),
            credential_blob: made.0,
            encrypted_secret: made.1,
        };
        self.fail_with(csr, &challenge);
    }

    fn fail_with(&self, mut csr: Value, challenge: &Challenge) {
        csr["metadata"]["annotations"][CHALLENGE_ANNOTATION] = challenge.to_annotation().into();
        csr["status"]["conditions"] = json!([{
            "type": "Failed", "status": "True", "reason": "ChallengeIssued", "message": "open it",
        }]);
        self.server.put_csr(csr);
    }

    /// Asserts that the quote covers this request and the contents of the challenge.
    fn check(&self, sent: &Sent, response: &Response) {
        let id = ChallengeId::new([7; 16]);
        assert_eq!(response.id, id);
        let binding = KeyBinding::new(
            &Provider::TPM,
            &response.header.audience,
            &sent.provider_id,
            &sent.node_name,
            &sent.spki,
            &[id.as_bytes(), &SECRET],
        );
        let attest = &response.quote.attest;
        let covers = attest.windows(32).any(|part| part == binding.as_bytes());
        assert!(covers, "the quote is over something else");
        assert_eq!(response.header.audience, self.audience());
    }

    /// The audience that is derived from the cluster's CA.
    pub fn audience(&self) -> Audience {
        Audience::of_ca(&self.server.authority().certificate_der())
    }

    /// The requests, in order.
    pub fn sent(&self) -> Vec<Sent> {
        let bodies = self.server.created_bodies().into_iter();
        bodies
            .map(|body| Sent::read(&serde_json::from_slice(&body).unwrap()))
            .collect()
    }

    /// Replaces the program that accesses the TPM.
    pub fn set_device_program(&mut self, content: &[u8]) {
        let path = self.node.move_program().join(DEVICE);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
}
