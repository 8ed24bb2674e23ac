//! Machines join and renew, with the real plugin on them.

use kubelet_attestation::evidence::tpm::TpmEvidence;
use kubelet_authenticator_tests::controller::{certificate_of, is_issued, reason_of};
use kubelet_authenticator_tests::tpm::{
    Sent, annotated_key, challenge_of, endorsement_key, provider_id,
};
use node_attestation_core::crd::{AllowedEndorsementKey, TpmSettings};
use serde_json::Value;

use crate::world::{World, machine};

/// Asserts that these are a request that was challenged and its answer, which was issued, of the
/// machine with this endorsement key.
#[track_caller]
fn assert_proved([first, second]: [&Value; 2], endorsement_key: &str) {
    assert_eq!(reason_of(first, "Failed"), Some("ChallengeIssued"));
    assert_eq!(reason_of(first, "Approved"), None);
    assert_eq!(certificate_of(first), None);
    let challenge = challenge_of(first).expect("a challenge");
    assert!(is_issued(second), "{second:#}");
    assert_eq!(challenge_of(second), None);
    let [asked, answered] = [first, second].map(Sent::read);
    assert!(matches!(asked.evidence, TpmEvidence::Enrol(_)));
    let TpmEvidence::Respond(response) = answered.evidence else {
        panic!("{:?}", answered.evidence)
    };
    assert_eq!(response.id, challenge.id);
    assert_eq!(asked.spki, answered.spki);
    for csr in [first, second] {
        assert_eq!(annotated_key(csr), Some(endorsement_key));
        let signer = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm";
        assert_eq!(csr["spec"]["signerName"], signer);
    }
}

/// The requests, in the order in which they were made.
fn requests(world: &World) -> Vec<Value> {
    let bodies = world.bed.server.created_bodies().into_iter();
    let names = bodies.map(|body| {
        let body: Value = serde_json::from_slice(&body).unwrap();
        body["metadata"]["name"].as_str().unwrap().to_owned()
    });
    names
        .map(|name| world.bed.server.csr(&name).unwrap())
        .collect()
}

#[test]
fn a_tpm_proves_its_machine_by_two_requests_and_again_at_each_renewal() {
    let machine = machine();
    let world = World::of(&[&machine]);
    let node = world.node(0, &machine);
    let key = endorsement_key(&machine);

    node.run().succeeded();
    // Those that were good enough are no reason to ask.
    node.run().succeeded();

    let csrs = requests(&world);
    assert_eq!(csrs.len(), 2);
    assert_proved([&csrs[0], &csrs[1]], &key);
    assert_eq!(csrs[1]["spec"]["username"], "system:bootstrap:to0000");

    node.command(&["renew", "--force"]).succeeded();

    let csrs = requests(&world);
    assert_eq!(csrs.len(), 4);
    assert_proved([&csrs[2], &csrs[3]], &key);
    for csr in &csrs[2..] {
        assert_eq!(csr["spec"]["username"], "system:node:n0");
    }
    assert_ne!(Sent::read(&csrs[1]).spki, Sent::read(&csrs[3]).spki);
}

#[test]
fn a_machine_that_something_else_names_joins_by_its_entry_in_the_list() {
    let machine = machine();
    let mut settings = TpmSettings::default();
    settings.endorsement_keys.allow_list = vec![AllowedEndorsementKey {
        machine: Some("n0".to_owned()),
        ek_sha256: endorsement_key(&machine),
        ..AllowedEndorsementKey::default()
    }];
    let listed = vec![(0, "metal:///rack-7/1".to_owned())];
    let world = World::listing(&settings, listed, &[]);

    world.node(0, &machine).run().succeeded();

    let csrs = requests(&world);
    assert_eq!(csrs.len(), 2);
    assert_proved([&csrs[0], &csrs[1]], &endorsement_key(&machine));
    let id = Sent::read(&csrs[1]).provider_id;
    assert_eq!(id.as_str(), "metal:///rack-7/1");
    assert_ne!(id.as_str(), provider_id(&machine));
}

#[test]
fn a_challenge_is_no_event_and_a_join_is_one() {
    let machine = machine();
    let mut world = World::of(&[&machine]);

    let csr = world.join(0, &world.requester(0), &machine);

    assert!(is_issued(&csr), "{csr:#}");
    let name = csr["metadata"]["name"].as_str().unwrap();
    world.bed.wait_for_event(name, "FirstJoin");
    world.controller.wait_for_decision(name);
    let events = world.bed.server.events();
    assert_eq!(events.len(), 1, "{events:#?}");
}
