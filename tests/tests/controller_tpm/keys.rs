//! The keys that challenges are made with, while they are replaced, and who else has them.

use kubelet_attestation::evidence::tpm::TpmEvidence;
use kubelet_authenticator_tests::controller::{is_issued, reason_of};

use crate::world::{FIRST, World};

#[test]
fn a_challenge_is_answered_as_long_as_its_key_is_the_present_or_the_former_one() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);
    let challenge = world.challenge(0, &requester, &FIRST);
    let response = TpmEvidence::Respond(requester.response(&FIRST, &challenge));

    world.challenger.rotate();
    let answer = world.ask(0, requester.carrying(&response));
    assert!(is_issued(&answer), "{answer:#}");

    world.challenger.drop_former();
    let answer = world.ask(0, requester.carrying(&response));
    let reason = reason_of(&answer, "Failed");
    assert_eq!(reason, Some("EvidenceExpired"), "{answer:#}");
    assert_eq!(reason_of(&answer, "Denied"), None);

    assert!(is_issued(&world.join(0, &requester, &FIRST)));
}

#[test]
fn a_challenge_is_answered_by_every_replica_that_has_its_key() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);
    let challenge = world.challenge(0, &requester, &FIRST);
    let response = TpmEvidence::Respond(requester.response(&FIRST, &challenge));

    let world = world.restart();

    let answer = world.ask(0, requester.carrying(&response));
    assert!(is_issued(&answer), "{answer:#}");
}
