//! What somebody tries who holds the machine's bootstrap token and whatever TPMs he likes, but not
//! the machine's.

use std::sync::Arc;

use kubelet_attestation::evidence::tpm::{
    ENDORSEMENT_KEY_ANNOTATION, Enrolment, Expiry, PublicAreas, Quote, Response, TpmEvidence,
};
use kubelet_authenticator_test_support::ek_ca::EkCa;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{
    AttestationKey, SoftwareKey, TpmMachine, forged_quote,
};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::tpm::{
    REGISTERS, challenge_of, endorsement_key, keys_of, provider_id, quote_of,
};
use node_attestation_core::crd::{AllowedEndorsementKey, PcrMode, TpmSettings};
use serde_json::Value;

use crate::world::{FIRST, SECOND, World, machine, machine_with};

#[test]
fn a_second_tpm_is_not_the_machines_whose_provider_id_it_gives() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);

    let enrolment = TpmEvidence::Enrol(requester.enrolment(&SECOND));
    world.denied(&requester, &enrolment, "EndorsementKeyOfAnotherMachine");

    // Nor with the challenge of the machine, which it cannot open.
    let challenge = world.challenge(0, &requester, &FIRST);
    let opened = SECOND.activate(&challenge.credential_blob, &challenge.encrypted_secret);
    assert!(opened.is_err());
    let guessed = requester.response_with(&SECOND, &challenge, &[0; 32]);
    let response = TpmEvidence::Respond(guessed);
    world.denied(&requester, &response, "EndorsementKeyOfAnotherMachine");
}

#[test]
fn a_software_key_is_no_attestation_key() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);
    let software = SoftwareKey::generate();

    // One that says what it is.
    let honest = FIRST.with_attestation_key(AttestationKey::software(&software));
    let enrolment = TpmEvidence::Enrol(requester.enrolment(&honest));
    world.denied(&requester, &enrolment, "AttestationKeyAttributes");

    // One that lies, and whose challenge the TPM does not open: it has no such key.
    let keys = PublicAreas {
        attestation: software.public(0x50472),
        ..keys_of(&FIRST)
    };
    let enrolment = Enrolment {
        keys: keys.clone(),
        ..requester.enrolment(&FIRST)
    };
    let answer = world.ask(0, requester.carrying(&TpmEvidence::Enrol(enrolment)));
    assert_eq!(reason_of(&answer, "Failed"), Some("ChallengeIssued"));
    let challenge = challenge_of(&answer).unwrap();
    let opened = FIRST.activate(&challenge.credential_blob, &challenge.encrypted_secret);
    assert!(opened.is_err());
    let registers = FIRST.quote(&[], &REGISTERS).registers;
    let data = requester.qualifying_data(&challenge, &[0; 32]);
    let attest = forged_quote(&keys.attestation, &data, &registers);
    let quote = Quote {
        signature: software.sign(&attest),
        attest,
        ..requester.response_with(&FIRST, &challenge, &[0; 32]).quote
    };
    let response = Response {
        keys,
        quote,
        ..requester.response_with(&FIRST, &challenge, &[0; 32])
    };
    let response = TpmEvidence::Respond(response);
    world.denied(&requester, &response, "QuoteOfAnotherRequest");
}

#[test]
fn a_response_is_good_for_the_key_that_it_was_made_for_alone() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);
    let challenge = world.challenge(0, &requester, &FIRST);
    let response = TpmEvidence::Respond(requester.response(&FIRST, &challenge));
    let thief = requester.with_new_key();

    world.denied(&thief, &response, "QuoteOfAnotherRequest");
    let issued = world.ask(0, requester.carrying(&response));
    assert!(is_issued(&issued), "{issued:#}");
    world.denied(&thief, &response, "QuoteOfAnotherRequest");
}

#[test]
fn a_quote_of_another_genuine_tpm_is_not_the_machines() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);
    let challenge = world.challenge(0, &requester, &FIRST);
    let honest = requester.response(&FIRST, &challenge);
    let secret = FIRST.activate(&challenge.credential_blob, &challenge.encrypted_secret);
    let data = requester.qualifying_data(&challenge, &secret.unwrap());

    let relayed = Response {
        quote: quote_of(SECOND.quote(&data, &REGISTERS)),
        ..honest.clone()
    };
    let relayed = TpmEvidence::Respond(relayed);
    world.denied(&requester, &relayed, "QuoteSignatureInvalid");

    let honest = requester.carrying(&TpmEvidence::Respond(honest));
    assert!(is_issued(&world.ask(0, honest)));
}

#[test]
fn a_challenge_answers_for_its_machine_and_key_alone() {
    let world = World::of(&[&FIRST, &SECOND]);
    let own = world.requester(1);
    let challenge = world.challenge(1, &own, &SECOND);
    let secret = SECOND.activate(&challenge.credential_blob, &challenge.encrypted_secret);
    let secret = secret.unwrap();

    // Of another machine: by its TPM, which signs whatever root has it sign.
    let other = world.requester(0);
    let opened = FIRST.activate(&challenge.credential_blob, &challenge.encrypted_secret);
    assert!(opened.is_err());
    let response = other.response_with(&FIRST, &challenge, &secret);
    let response = TpmEvidence::Respond(response);
    world.denied(&other, &response, "QuoteOfAnotherRequest");

    // With another key.
    let rekeyed = own.with_new_key();
    let response = rekeyed.response_with(&SECOND, &challenge, &secret);
    let answer = world.ask(1, rekeyed.carrying(&TpmEvidence::Respond(response)));
    let reason = reason_of(&answer, "Denied");
    assert_eq!(reason, Some("QuoteOfAnotherRequest"), "{answer:#}");

    // With its own, and once more, as a node does that did not hear of the answer.
    let response = TpmEvidence::Respond(own.response(&SECOND, &challenge));
    for _ in 0..2 {
        let answer = world.ask(1, own.carrying(&response));
        assert!(is_issued(&answer), "{answer:#}");
    }
}

#[test]
fn an_answer_that_comes_too_late_fails_and_a_longer_time_cannot_be_claimed() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);
    let challenge = world.challenge(0, &requester, &FIRST);
    let honest = requester.response(&FIRST, &challenge);
    let with_end = |expiry| {
        let expiry = Expiry::parse(expiry).unwrap();
        let changed = Response {
            expiry,
            ..honest.clone()
        };
        TpmEvidence::Respond(changed)
    };

    let late = requester.carrying(&with_end("2020-01-01T00:00:00Z"));
    let answer = world.ask(0, late);
    assert_eq!(reason_of(&answer, "Failed"), Some("EvidenceExpired"));
    assert_eq!(reason_of(&answer, "Denied"), None);

    let longer = with_end("2100-01-01T00:00:00Z");
    world.denied(&requester, &longer, "QuoteOfAnotherRequest");
}

#[test]
fn a_machine_whose_boot_chain_has_changed_is_denied_and_the_register_told() {
    let machine = machine();
    let mut settings = TpmSettings::default();
    settings.pcr_policy.mode = PcrMode::Enforce;
    let hex = |bytes: Vec<u8>| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let state = [4, 7].map(|number: u8| (number.to_string(), hex(machine.tpm().pcr(number))));
    settings.pcr_policy.allowed = vec![state.into_iter().collect()];
    let listed = vec![(0, provider_id(&machine))];
    let world = World::listing(&settings, listed, &[]);
    let requester = world.requester(0);
    assert!(is_issued(&world.join(0, &requester, &machine)));

    // One that the policy does not name.
    machine.tpm().extend(1, &[7; 32]);
    assert!(is_issued(&world.join(0, &requester, &machine)));

    machine.tpm().extend(7, &[7; 32]);

    let answer = world.join(0, &requester, &machine);
    let reason = reason_of(&answer, "Denied");
    assert_eq!(reason, Some("RegisterNotAllowed"), "{answer:#}");
    let name = answer["metadata"]["name"].as_str().unwrap();
    let event = world.bed.wait_for_event(name, "RegisterNotAllowed");
    let told = format!("register 7 is {}", hex(machine.tpm().pcr(7)));
    let note = event["note"].as_str().unwrap();
    assert!(note.contains(&told), "{note}");
}

#[test]
fn a_genuine_tpm_of_the_required_vendor_is_not_yet_the_machines() {
    let (first, second) = (machine(), machine());
    let other_maker = Arc::new(EkCa::new("another maker"));
    let unlisted = machine_with(Swtpm::made_by(&other_maker));
    let mut settings = TpmSettings::default();
    let maker = first.tpm().maker();
    settings.endorsement_keys.require_ca =
        vec![maker.root_pem().to_owned() + maker.intermediates_pem()];
    settings.endorsement_keys.allow_list = vec![AllowedEndorsementKey {
        machine: Some("n0".to_owned()),
        ek_sha256: endorsement_key(&first),
        ..AllowedEndorsementKey::default()
    }];
    let listed = vec![(0, "metal:///0".to_owned()), (1, provider_id(&unlisted))];
    let world = World::listing(&settings, listed, &[]);
    let requester = world.requester(0);
    let enrolment = |machine: &TpmMachine| TpmEvidence::Enrol(requester.enrolment(machine));

    world.denied(
        &requester,
        &enrolment(&second),
        "EndorsementKeyOfAnotherMachine",
    );
    let uncertified = TpmEvidence::Enrol(Enrolment {
        certificate: None,
        ..requester.enrolment(&first)
    });
    world.denied(&requester, &uncertified, "EndorsementCertificateMissing");
    let borrowed = TpmEvidence::Enrol(Enrolment {
        certificate: second.ek_certificate(),
        ..requester.enrolment(&first)
    });
    world.denied(&requester, &borrowed, "EndorsementCertificateOfAnotherKey");
    assert!(is_issued(&world.join(0, &requester, &first)));

    // The machine's own TPM, by another maker.
    let requester = world.requester(1);
    let enrolment = TpmEvidence::Enrol(requester.enrolment(&unlisted));
    let answer = world.ask(1, requester.carrying(&enrolment));
    let reason = reason_of(&answer, "Denied");
    assert_eq!(
        reason,
        Some("EndorsementCertificateUntrusted"),
        "{answer:#}"
    );
}

#[test]
fn an_endorsement_key_that_is_annotated_beforehand_is_denied_unless_it_is_the_machines() {
    let world = World::of(&[&FIRST]);
    let requester = world.requester(0);
    for (annotated, condition, reason) in [
        (&*SECOND, "Denied", "EndorsementKeyAnnotation"),
        (&*FIRST, "Failed", "ChallengeIssued"),
    ] {
        let enrolment = TpmEvidence::Enrol(requester.enrolment(&FIRST));
        let application = requester.carrying(&enrolment).with_token("to0000");
        let mut object: Value = application.to_stored();
        let key = endorsement_key(annotated);
        object["metadata"]["annotations"] = [(ENDORSEMENT_KEY_ANNOTATION, key)]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        world.bed.server.put_csr(object);

        let answer = world.bed.wait_for_answer(&application.name());
        assert_eq!(reason_of(&answer, condition), Some(reason), "{answer:#}");
    }
}

#[test]
fn a_secret_that_another_clusters_controller_sealed_answers_for_nothing_here() {
    let (here, there) = (World::of(&[&FIRST]), World::of(&[&FIRST]));
    let elsewhere = there.requester(0);
    let challenge = there.challenge(0, &elsewhere, &FIRST);

    let response = TpmEvidence::Respond(elsewhere.response(&FIRST, &challenge));
    here.denied(&elsewhere, &response, "AudienceMismatch");

    // The same challenge, opened, and quoted for this cluster.
    let requester = here.requester(0);
    let response = TpmEvidence::Respond(requester.response(&FIRST, &challenge));
    let answer = here.ask(0, requester.carrying(&response));
    let reason = reason_of(&answer, "Failed");
    assert_eq!(reason, Some("EvidenceExpired"), "{answer:#}");

    let at_home = elsewhere.response(&FIRST, &challenge);
    let at_home = elsewhere.carrying(&TpmEvidence::Respond(at_home));
    assert!(is_issued(&there.ask(0, at_home)));
}
