//! One TPM is one machine, and goes forwards.

use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::tpm::{endorsement_key, provider_id};
use node_attestation_core::crd::{AllowedEndorsementKey, TpmSettings};
use serde_json::Value;

use crate::world::{World, machine, machine_with};

/// Asserts that people are told of the request, so that they can be called for it: a warning by a
/// reason that nothing else has, with these words.
#[track_caller]
fn assert_alarming(world: &World, csr: &Value, reason: &str, words: &[&str]) {
    let event = world
        .bed
        .wait_for_event(csr["metadata"]["name"].as_str().unwrap(), reason);
    assert_eq!(event["type"], "Warning", "{event:#}");
    assert_eq!(event["action"], "Deny", "{event:#}");
    let note = event["note"].as_str().unwrap();
    for word in words {
        assert!(note.contains(word), "no {word:?} in {note:?}");
    }
}

#[test]
fn the_endorsement_key_of_another_machine_is_denied_and_an_event_tells_of_it() {
    let machine = machine();
    let mut settings = TpmSettings::default();
    // By mistake: it is the other's, as that one's provider ID says.
    settings.endorsement_keys.allow_list = vec![AllowedEndorsementKey {
        machine: Some("n1".to_owned()),
        ek_sha256: endorsement_key(&machine),
        ..AllowedEndorsementKey::default()
    }];
    let listed = vec![(0, provider_id(&machine)), (1, "metal:///1".to_owned())];
    let world = World::listing(&settings, listed, &[]);
    world.node(0, &machine).run().succeeded();

    let second = world.node(1, &machine);
    second.run().failed(12).saying("TpmOfAnotherMachine");

    let csrs = world.bed.server.csrs();
    let denied: Vec<_> = csrs
        .iter()
        .filter(|csr| reason_of(csr, "Denied") == Some("TpmOfAnotherMachine"))
        .collect();
    assert_eq!(denied.len(), 1, "{csrs:#?}");
    let holder = provider_id(&machine);
    let words = [&*holder, "n0"];
    assert_alarming(&world, denied[0], "TpmOfAnotherMachine", &words);
}

#[test]
fn a_copy_of_the_tpm_that_is_behind_the_original_is_denied_and_an_event_tells_of_it() {
    let original = machine();
    let copy = machine_with(Swtpm::copy_of(original.tpm()));
    for _ in 0..2 {
        original.tpm().reset(Reset::Orderly);
    }
    let world = World::of(&[&original]);
    world.node(0, &original).run().succeeded();

    let second = world.node(0, &copy);
    second.run().failed(12).saying("TpmRanBackwards");

    let csrs = world.bed.server.csrs();
    let denied: Vec<_> = csrs
        .iter()
        .filter(|csr| reason_of(csr, "Denied") == Some("TpmRanBackwards"))
        .collect();
    assert_eq!(denied.len(), 1, "{csrs:#?}");
    let holder = provider_id(&original);
    let words = [&*holder, "n0", "a copy, or cleared"];
    assert_alarming(&world, denied[0], "TpmRanBackwards", &words);

    // The original goes on.
    let again = world.join(0, &world.requester(0), &original);
    assert!(is_issued(&again), "{again:#}");
}
