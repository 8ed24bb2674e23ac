//! The attacks by an attacker who has everything except the machine.

use std::time::Duration;

use kubelet_attestation::evidence::tpm::{
    Challenge, Enrolment, Expiry, PublicAreas, Response, TpmEvidence,
};
use kubelet_authenticator_test_support::clock;
use kubelet_authenticator_test_support::tpm_machine::{
    Quote, SoftwareKey, TpmMachine, forged_quote,
};
use kubelet_authenticator_tests::tpm::{REGISTERS, Requester, quote_of};

use super::scene::Scene;
use crate::attacks::LEAKED;

/// The response of Kubernetes' built-in signer with kubeadm's bindings. This signer does not read evidence, so each of
/// these attacks is only a request with a bootstrap token and a node name.
pub const STOCK: &str = "issued";

/// A time that is longer than the time limit for answering a challenge.
const LONG_AGO: Duration = Duration::from_mins(20);

/// The attributes of a valid attestation key.
const GOOD: u32 = 0x5_0472;

/// The attributes of a key that was not created in a TPM, and can be exported.
const IMPORTED: u32 = 0x5_0440;

/// An attack with the victim's bootstrap token.
pub struct Attack {
    /// A short description.
    pub what: &'static str,
    /// The type of the condition in the refusal.
    pub kind: &'static str,
    /// The reason for the refusal.
    pub reason: &'static str,
    request: fn(&Scene<'_>) -> String,
}

impl Attack {
    /// Runs the attack. Returns the name of the request that must be refused.
    pub fn on(&self, scene: &Scene<'_>) -> String {
        (self.request)(scene)
    }
}

impl Scene<'_> {
    /// The victim's endorsement key, which is public, and this attestation key.
    fn keys(&self, attestation: Vec<u8>) -> PublicAreas {
        let endorsement = self.victim().ek_public();
        PublicAreas {
            endorsement,
            attestation,
        }
    }

    /// Requests a challenge for the victim's endorsement key and this attestation key.
    fn enrol_with(&self, requester: &Requester, attestation: Vec<u8>) -> String {
        let enrolment = Enrolment {
            keys: self.keys(attestation),
            ..requester.enrolment(self.victim())
        };
        self.enrol(requester, enrolment)
    }

    /// Answers a challenge for the victim's endorsement key and this attestation key. The quote is valid. However, if
    /// the attacker's TPM cannot open the challenge, the quote does not cover the challenge's secret.
    fn answer_with(
        &self,
        attestation: Vec<u8>,
        quote: impl FnOnce(&[u8], &TpmMachine) -> Quote,
    ) -> String {
        let requester = self.requester();
        let enrolment = self.enrol_with(&requester, attestation.clone());
        let challenge = self.challenge(&enrolment);
        let Challenge {
            credential_blob,
            encrypted_secret,
            ..
        } = &challenge;
        let opened = self
            .world
            .own
            .host
            .activate(credential_blob, encrypted_secret);
        let can = if opened.is_ok() {
            "OPENS"
        } else {
            "cannot open"
        };
        println!("which the attacker's TPM {can}, and answers");
        let guessed = opened.unwrap_or_else(|_| vec![0; 32]);
        let covered = requester.qualifying_data(&challenge, &guessed);
        let response = Response {
            keys: self.keys(attestation),
            quote: quote_of(quote(&covered, self.victim())),
            ..requester.response_with(self.victim(), &challenge, &guessed)
        };
        self.file(requester.carrying(&TpmEvidence::Respond(response)))
    }

    /// Answers a challenge as the victim does, but with an expiry time this long ago.
    fn answer_late(&self, ago: Duration) -> String {
        let (requester, victim) = (self.requester(), self.victim());
        let enrolment = self.enrol(&requester, requester.enrolment(victim));
        let end = humantime::format_rfc3339_seconds(clock::now() - ago);
        let challenge = Challenge {
            expiry: Expiry::parse(&end.to_string()).expect("a time"),
            ..self.challenge(&enrolment)
        };
        println!("which worker-2's TPM opens, and answers");
        let response = requester.response(victim, &challenge);
        self.file(requester.carrying(&TpmEvidence::Respond(response)))
    }
}

/// The attacks, in the order of the demo.
pub const ATTACKS: [Attack; 9] = [
    Attack {
        what: "worker-2's name, with no evidence",
        kind: "Denied",
        reason: "EvidenceMissing",
        request: |scene| scene.send(None),
    },
    Attack {
        what: "worker-2's identity, with a genuine TPM of the same vendor",
        kind: "Denied",
        reason: "EndorsementKeyOfAnotherMachine",
        request: |scene| {
            let tcti = scene.world.own.tpm().tcti();
            scene.run_plugin(Some(("tpm.tcti", tcti)))
        },
    },
    Attack {
        what: "worker-2's endorsement key, and an attestation key in software",
        kind: "Denied",
        reason: "AttestationKeyAttributes",
        request: |scene| {
            let software = SoftwareKey::generate();
            scene.enrol_with(&scene.requester(), software.public(IMPORTED))
        },
    },
    Attack {
        what: "the same key, claimed as a key of worker-2's TPM",
        kind: "Denied",
        reason: "QuoteOfAnotherRequest",
        request: |scene| {
            let software = SoftwareKey::generate();
            let public = software.public(GOOD);
            scene.answer_with(public.clone(), |covered, victim| {
                let registers = victim.quote(covered, &REGISTERS).registers;
                let attest = forged_quote(&public, covered, &registers);
                Quote {
                    signature: software.sign(&attest),
                    attest,
                    registers,
                }
            })
        },
    },
    Attack {
        what: "worker-2's endorsement key, a quote from the attacker's TPM",
        kind: "Denied",
        reason: "QuoteOfAnotherRequest",
        request: |scene| {
            let own = &scene.world.own.host;
            scene.answer_with(own.ak_public(), |covered, _| own.quote(covered, &REGISTERS))
        },
    },
    Attack {
        what: "worker-2's quote, copied from its request to a new key",
        kind: "Denied",
        reason: "QuoteOfAnotherRequest",
        request: |scene| scene.send(scene.copied()),
    },
    Attack {
        what: "an answer to an expired challenge, as root on worker-2",
        kind: "Failed",
        reason: "EvidenceExpired",
        request: |scene| scene.answer_late(LONG_AGO),
    },
    Attack {
        what: "a control-plane node's name, as root on worker-2",
        kind: "Denied",
        reason: "NodeNameMismatch",
        request: |scene| {
            let name = "control-plane-1".to_owned();
            scene.run_plugin(Some(("nodeName", name)))
        },
    },
    Attack {
        what: "worker-2 itself, with another boot loader",
        kind: "Denied",
        reason: "RegisterNotAllowed",
        request: |scene| {
            let boot_loader = 4;
            scene
                .world
                .machine(LEAKED)
                .tpm()
                .extend(boot_loader, &[6; 32]);
            scene.run_plugin(None)
        },
    },
];
