//! Instances with NitroTPMs that nobody listed: EC2 says which TPM is whose. TPMs are in software.

use std::sync::Arc;

use kubelet_attestation::evidence::tpm::TpmEvidence;
use kubelet_authenticator_test_support::moto::{Failure, NitroTpm, Scope};
use kubelet_authenticator_test_support::sts::Times;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::cloud::{Cloud, Instance};
use kubelet_authenticator_tests::controller::{
    Bed, Controller, is_issued, reason_of, token_of_instance,
};
use kubelet_authenticator_tests::tpm::{self, Challenger, Requester, challenge_of};
use node_attestation_core::crd::{EndorsementKeyPlatform, TpmSettings};
use serde_json::Value;

const ACTION: &str = "GetInstanceTpmEkPub";

/// What follows the ID in the bootstrap token.
const SECRET: &str = "0123456789abcdef";

/// A cluster of one instance, whose controller asks EC2 about its TPM.
struct World {
    cloud: Cloud,
    instance: Instance,
    machine: TpmMachine,
    bed: Bed,
    controller: Controller,
    _challenger: Challenger,
}

impl World {
    fn start(arguments: &[&str]) -> Self {
        let cloud = Cloud::start();
        let (instance, machine) = launch(&cloud);
        let mut settings = TpmSettings::default();
        settings.endorsement_keys.platform = EndorsementKeyPlatform::Aws;
        let challenger = Challenger::new(&settings);
        // As Cluster API Provider AWS calls what the kubelet calls by its private DNS name.
        let machines = [("prod-1-md-0-x7k2p", &*instance.provider_id())];
        let mut bed = Bed::tpms(&challenger, &machines);
        let setup = bed.setup.args(&cloud.manager_arguments()).args(arguments);
        let environment = cloud.manager_environment().into_iter();
        bed.setup = environment.fold(setup, |setup, (name, value)| setup.env(name, &value));
        let mut controller = bed.setup.start();
        controller.wait_until_it_watches();
        Self {
            cloud,
            instance,
            machine,
            bed,
            controller,
            _challenger: challenger,
        }
    }

    fn requester(&self) -> Requester {
        let provider_id = self.instance.provider_id();
        let name = self.instance.node_name();
        Requester::new(self.bed.server.ca_pem(), &provider_id, name)
    }

    /// Files this with the instance's token; gives its name.
    fn put(&self, requester: &Requester, evidence: &TpmEvidence) -> String {
        let application = requester.carrying(evidence);
        let application = application.with_token(&token_of_instance(0));
        application.put(&self.bed.server)
    }

    /// Enrols the instance by this TPM; the answer.
    fn enrol(&self, machine: &TpmMachine) -> Value {
        let requester = self.requester();
        let evidence = TpmEvidence::Enrol(requester.enrolment(machine));
        let name = self.put(&requester, &evidence);
        self.bed.wait_for_answer(&name)
    }
}

/// An instance, and its TPM.
fn launch(cloud: &Cloud) -> (Instance, TpmMachine) {
    let instance = cloud.launch(&[]);
    let tpm = Arc::new(Swtpm::start());
    let known = NitroTpm::of(&tpm);
    cloud.moto().give_tpm(&instance.ec2.id, known);
    (instance, TpmMachine::new(tpm, EndorsementKey::P384))
}

#[test]
fn an_instance_that_nobody_listed_joins_by_its_nitro_tpm_for_two_calls_of_ec2() {
    let world = World::start(&[]);
    let token = token_of_instance(0);
    world.bed.server.add_token(&token, SECRET);
    let mut node = tpm::node(&world.machine, &world.bed.server);
    let folder = node.scratch().path().to_owned();
    let token = format!("{token}.{SECRET}");
    let bootstrap = world.bed.server.write_bootstrap_kubeconfig(&folder, &token);
    node.set("BOOTSTRAP_KUBECONFIG", bootstrap);
    // The provider ID is what the metadata service says.
    for (name, value) in world.instance.plugin_environment(&world.cloud) {
        node.set_env(name, value);
    }

    node.run().succeeded();

    let calls = world.cloud.moto().calls();
    let actions: Vec<_> = calls.iter().map(|call| &*call.action).collect();
    assert_eq!(actions, [ACTION, "DescribeInstances"], "{calls:#?}");
    for (call, parameter) in calls.iter().zip(["InstanceId", "Filter.1.Value"]) {
        assert_eq!(call.values(parameter), [&*world.instance.ec2.id]);
    }
}

#[test]
fn a_node_is_called_as_ec2_says_and_not_as_its_machine() {
    let world = World::start(&[]);
    let provider_id = world.instance.provider_id();

    for (name, denied) in [
        ("prod-1-md-0-x7k2p", Some("NodeNameMismatch")),
        (world.instance.node_name(), None),
    ] {
        let requester = Requester::new(world.bed.server.ca_pem(), &provider_id, name);
        let enrolment = TpmEvidence::Enrol(requester.enrolment(&world.machine));
        let first = world.put(&requester, &enrolment);
        let challenge = challenge_of(&world.bed.wait_for_answer(&first)).expect("a challenge");
        let response = requester.response(&world.machine, &challenge);
        let second = world.put(&requester, &TpmEvidence::Respond(response));

        let answer = world.bed.wait_for_answer(&second);

        assert_eq!(reason_of(&answer, "Denied"), denied, "{answer:#}");
        assert_eq!(is_issued(&answer), denied.is_none());
    }
}

#[test]
fn an_ec2_that_does_not_tell_the_name_delays_a_join() {
    let mut world = World::start(&[]);
    let moto = world.cloud.moto();
    let scope = Scope::any().and_action("DescribeInstances");
    moto.inject(scope, Times::always(), Failure::unauthorized());
    let requester = world.requester();
    let enrolment = TpmEvidence::Enrol(requester.enrolment(&world.machine));
    let first = world.put(&requester, &enrolment);
    let challenge = challenge_of(&world.bed.wait_for_answer(&first)).expect("a challenge");
    let response = requester.response(&world.machine, &challenge);

    let second = world.put(&requester, &TpmEvidence::Respond(response));

    let line = world.controller.wait_for_line("decided", |line| {
        line["csr"] == *second && line["reason"] == "VerifierUnavailable"
    });
    assert_eq!(line["outcome"], "deferred");
    let why = "the controller may not call ec2:DescribeInstances in eu-west-1";
    assert!(line.to_string().contains(why), "{line:#}");
    world.cloud.moto().clear_failures();
    assert!(is_issued(&world.bed.wait_for_answer(&second)));
}

#[test]
fn a_genuine_tpm_of_another_instance_is_denied() {
    let world = World::start(&[]);
    let (_, another) = launch(&world.cloud);

    let answer = world.enrol(&another);

    let reason = reason_of(&answer, "Denied");
    assert_eq!(reason, Some("EndorsementKeyOfAnotherMachine"), "{answer:#}");
    // A key of the kind that EC2 does not know.
    let p256 = world.machine.with_endorsement_key(EndorsementKey::P256);
    let answer = world.enrol(&p256);
    let reason = reason_of(&answer, "Denied");
    assert_eq!(reason, Some("EndorsementKeyUnknown"), "{answer:#}");
}

#[test]
fn ec2_is_not_asked_in_a_region_where_the_cluster_has_no_instances() {
    let world = World::start(&["--aws-region=eu-west-2"]);

    let answer = world.enrol(&world.machine);

    let reason = reason_of(&answer, "Denied");
    assert_eq!(reason, Some("EndorsementKeyUnknown"), "{answer:#}");
    assert_eq!(world.cloud.moto().count(ACTION), 0);
}

#[test]
fn an_ec2_that_tells_no_key_delays_a_join_and_says_why() {
    for (failure, why) in [
        (
            Failure::unauthorized(),
            "the controller may not call ec2:GetInstanceTpmEkPub in eu-west-1",
        ),
        (Failure::throttled(), "EC2 in eu-west-1 is asked too often"),
        (Failure::Cut, "EC2 in eu-west-1 could not be asked"),
    ] {
        let mut world = World::start(&[]);
        let moto = world.cloud.moto();
        moto.inject(Scope::any().and_action(ACTION), Times::always(), failure);
        let requester = world.requester();
        let evidence = TpmEvidence::Enrol(requester.enrolment(&world.machine));
        let first = world.put(&requester, &evidence);
        let line = world.controller.wait_for_line("decided", |line| {
            line["csr"] == *first && line["reason"] == "VerifierUnavailable"
        });
        assert_eq!(line["outcome"], "deferred");
        assert!(line.to_string().contains(why), "{line:#}");
        let csr = world.bed.server.csr(&first).unwrap();
        assert!(csr["status"]["conditions"].is_null(), "{csr:#}");

        world.cloud.moto().clear_failures();

        let challenged = world.bed.wait_for_answer(&first);
        let challenge = challenge_of(&challenged).expect("a challenge");
        let response = requester.response(&world.machine, &challenge);
        let second = world.put(&requester, &TpmEvidence::Respond(response));
        assert!(is_issued(&world.bed.wait_for_answer(&second)));
    }
}
