//! The methods of an attacker against machines with TPMs: running the plugin, and creating evidence without the plugin.

use std::cell::Cell;

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::evidence::tpm::{CHALLENGE_ANNOTATION, Challenge, Enrolment, TpmEvidence};
use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::tpm_machine::TpmMachine;
use kubelet_authenticator_tests::controller::Application;
use kubelet_authenticator_tests::tpm::Requester;

use super::{PROGRAM, Requests, TPM, World};
use crate::attacker::Attacker;
use crate::attacks::LEAKED;
use crate::plugin::Plugin;

/// The resources of the attacker.
pub struct Scene<'a> {
    /// The cluster, and both machines.
    pub world: &'a World,
    /// A client that uses the victim's bootstrap token.
    pub attacker: Attacker,
    /// The name of the request that contains the victim's quote.
    victim: String,
    runs: Cell<usize>,
}

impl<'a> Scene<'a> {
    /// Creates the state before the first attack.
    pub fn new(world: &'a World) -> Self {
        let mut answers = world.requests_of(LEAKED).responses;
        Self {
            attacker: Attacker::holding(&world.cluster, LEAKED),
            victim: answers.pop().expect("the victim has joined"),
            runs: Cell::new(0),
            world,
        }
    }

    /// The victim's machine.
    pub fn victim(&self) -> &TpmMachine {
        &self.world.machine(LEAKED).host
    }

    /// Creates a requester that claims to be the victim, with a new key.
    pub fn requester(&self) -> Requester {
        let victim = self.world.machine(LEAKED);
        Requester::new(&self.world.cluster.ca_pem(), &victim.provider_id, LEAKED)
    }

    /// Runs the plugin with the victim's token, and with this change to the settings of its machine. Returns the name
    /// of the last request that it sent.
    pub fn run_plugin(&self, change: Option<(&'static str, String)>) -> String {
        let victim = self.world.machine(LEAKED);
        let own = victim.plugin_settings(victim.tpm().tcti());
        let changed = change.as_ref().map(|(key, _)| *key);
        let own = own.into_iter().filter(|(key, _)| Some(*key) != changed);
        let own: Vec<_> = own.chain(change).collect();
        let number = self.runs.get();
        self.runs.set(number + 1);
        let folder = self.world.folder.path().join(format!("attack-{number}"));
        let before = self.world.requests_of(LEAKED);
        let run = Plugin::new(&self.world.cluster, &folder, LEAKED, PROGRAM, own).run();
        let Requests {
            enrolments,
            responses,
        } = self.world.requests_of(LEAKED);
        let mut sent = responses.into_iter().chain(enrolments);
        let sent =
            sent.find(|name| !before.enrolments.contains(name) && !before.responses.contains(name));
        sent.unwrap_or_else(|| panic!("the plugin did not send a request: {}", run.stderr()))
    }

    /// Sends a request with the victim's name, this evidence, and a new key. Returns the name of the request.
    pub fn send(&self, evidence: Option<Vec<u8>>) -> String {
        let id = &self.world.machine(LEAKED).provider_id;
        self.file(Application::claiming(LEAKED, id, Provider::TPM, evidence))
    }

    /// The evidence in the victim's response to its challenge. Every client that has a bootstrap token can read it.
    pub fn copied(&self) -> Option<Vec<u8>> {
        let request = self.attacker.read_request(&self.victim);
        Envelope::parse(request.as_bytes()).unwrap().evidence
    }

    /// Sends the keys of a TPM. If the controller accepts the keys, it creates a challenge for them. Returns the name
    /// of the request.
    pub fn enrol(&self, requester: &Requester, enrolment: Enrolment) -> String {
        self.file(requester.carrying(&TpmEvidence::Enrol(enrolment)))
    }

    /// Returns the challenge for a request, and prints the first part of a line about the challenge.
    pub fn challenge(&self, enrolment: &str) -> Challenge {
        let verdict = self.attacker.await_verdict(enrolment).summary();
        let annotation = self
            .attacker
            .read_annotation(enrolment, CHALLENGE_ANNOTATION);
        let challenge = annotation.and_then(|text| Challenge::parse(&text).ok());
        print!("      gets a challenge ({verdict}), ");
        challenge.unwrap_or_else(|| panic!("no challenge: {verdict}"))
    }

    /// Creates a request. Returns its name.
    pub fn file(&self, request: Application) -> String {
        let request = String::from_utf8(request.request()).unwrap();
        let sent = self.attacker.send(TPM, &request);
        sent.unwrap_or_else(|refused| panic!("{}", refused.summary()))
    }
}
