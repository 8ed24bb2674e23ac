//! A cluster whose controller challenges the TPMs of its machines.

use std::sync::{Arc, LazyLock};

use kubelet_attestation::evidence::tpm::{Challenge, TpmEvidence};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::controller::{
    Application, Bed, Controller, reason_of, token_of_instance,
};
use kubelet_authenticator_tests::node::Node;
use kubelet_authenticator_tests::tpm::{self, Challenger, Requester, challenge_of};
use node_attestation_core::crd::TpmSettings;
use serde_json::Value;

/// What follows the ID in every bootstrap token.
const SECRET: &str = "0123456789abcdef";

/// The first machine, where a test does nothing to its TPM but ask it.
pub static FIRST: LazyLock<TpmMachine> = LazyLock::new(machine);

/// Another one, by the same maker.
pub static SECOND: LazyLock<TpmMachine> = LazyLock::new(machine);

/// A new machine.
pub fn machine() -> TpmMachine {
    machine_with(Swtpm::start())
}

/// The machine with this TPM.
pub fn machine_with(tpm: Swtpm) -> TpmMachine {
    TpmMachine::new(Arc::new(tpm), EndorsementKey::P384)
}

pub struct World {
    pub challenger: Challenger,
    pub bed: Bed,
    pub controller: Controller,
    machines: Vec<(String, String)>,
}

impl World {
    /// With these machines, which only their TPMs name: `n0`, `n1`, ...
    pub fn of(machines: &[&TpmMachine]) -> Self {
        let listed = machines.iter().enumerate();
        let listed = listed.map(|(number, machine)| (number, tpm::provider_id(machine)));
        Self::listing(&TpmSettings::default(), listed.collect(), &[])
    }

    /// With machines of these numbers and provider IDs, a controller that is told so, and more
    /// arguments for it.
    pub fn listing(
        settings: &TpmSettings,
        machines: Vec<(usize, String)>,
        arguments: &[&str],
    ) -> Self {
        let challenger = Challenger::new(settings);
        let machines: Vec<_> = machines
            .into_iter()
            .map(|(number, provider_id)| (format!("n{number}"), provider_id))
            .collect();
        let listed: Vec<_> = machines
            .iter()
            .map(|(name, provider_id)| (&**name, &**provider_id))
            .collect();
        let mut bed = Bed::tpms(&challenger, &listed);
        bed.setup = bed.setup.args(arguments);
        let controller = start(&bed);
        Self {
            challenger,
            bed,
            controller,
            machines,
        }
    }

    /// Starts the controller again.
    pub fn restart(self) -> Self {
        self.controller.stop();
        let controller = start(&self.bed);
        Self { controller, ..self }
    }

    /// The machine of this number with the real plugin on it.
    pub fn node(&self, number: usize, machine: &TpmMachine) -> Node {
        let token = token_of_instance(number);
        self.bed.server.add_token(&token, SECRET);
        let mut node = tpm::node(machine, &self.bed.server);
        let folder = node.scratch().path().to_owned();
        let token = format!("{token}.{SECRET}");
        let bootstrap = self.bed.server.write_bootstrap_kubeconfig(&folder, &token);
        node.set("BOOTSTRAP_KUBECONFIG", bootstrap);
        let (name, provider_id) = &self.machines[number];
        node.set("NODE_NAME", name);
        node.set("PROVIDER_ID", provider_id);
        node
    }

    /// Whoever asks for what is the machine's of this number.
    pub fn requester(&self, number: usize) -> Requester {
        let (name, provider_id) = &self.machines[number];
        Requester::new(self.bed.server.ca_pem(), provider_id, name)
    }

    /// Files this with the token of the machine of this number; the request once it has an answer.
    #[track_caller]
    pub fn ask(&self, number: usize, application: Application) -> Value {
        let application = application.with_token(&token_of_instance(number));
        let name = application.put(&self.bed.server);
        self.bed.wait_for_answer(&name)
    }

    /// Has this evidence denied, for this reason; the request.
    #[track_caller]
    pub fn denied(&self, requester: &Requester, evidence: &TpmEvidence, reason: &str) -> Value {
        let answer = self.ask(0, requester.carrying(evidence));
        assert_eq!(reason_of(&answer, "Denied"), Some(reason), "{answer:#}");
        answer
    }

    /// Has the machine of this number, which has this TPM, challenged.
    #[track_caller]
    pub fn challenge(
        &self,
        number: usize,
        requester: &Requester,
        machine: &TpmMachine,
    ) -> Challenge {
        let enrolment = TpmEvidence::Enrol(requester.enrolment(machine));
        let answer = self.ask(number, requester.carrying(&enrolment));
        let reason = reason_of(&answer, "Failed");
        assert_eq!(reason, Some("ChallengeIssued"), "{answer:#}");
        challenge_of(&answer).unwrap()
    }

    /// Joins the machine of this number, which has this TPM; the request that was issued.
    #[track_caller]
    pub fn join(&self, number: usize, requester: &Requester, machine: &TpmMachine) -> Value {
        let challenge = self.challenge(number, requester, machine);
        let response = TpmEvidence::Respond(requester.response(machine, &challenge));
        self.ask(number, requester.carrying(&response))
    }
}

fn start(bed: &Bed) -> Controller {
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    controller
}
