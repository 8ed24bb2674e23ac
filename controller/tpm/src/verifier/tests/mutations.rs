//! Tests with random changes to valid evidence.

use kubelet_attestation::evidence::version_of;

use super::*;

const MUTATIONS: usize = 100_000;

/// Random numbers that are the same in every run (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap()
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() % end
    }
}

/// Makes one change: a bit or byte is changed, or bytes are omitted, repeated or moved.
fn change(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    if bytes.is_empty() {
        return;
    }
    let at = numbers.below(bytes.len());
    let length = numbers.below(8).min(bytes.len() - at);
    match numbers.below(5) {
        0 => bytes[at] ^= 1 << numbers.below(8),
        1 => bytes[at] = numbers.next().to_le_bytes()[0],
        2 => drop(bytes.drain(at..at + length)),
        3 => {
            let repeated = bytes[at..at + length].to_vec();
            bytes.splice(at..at, repeated);
        }
        _ => {
            let moved: Vec<u8> = bytes.drain(at..at + length).collect();
            let to = numbers.below(bytes.len() + 1);
            bytes.splice(to..to, moved);
        }
    }
}

fn changed(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        change(bytes, numbers);
    }
}

#[test]
fn a_quote_with_a_random_change_is_denied() {
    let case = Case::valid();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut kept) = (0, 0);
    for _ in 0..MUTATIONS {
        let mut response = GOOD.response.clone();
        match numbers.below(4) {
            0 => changed(&mut response.keys.endorsement, &mut numbers),
            1 => changed(&mut response.keys.attestation, &mut numbers),
            2 => changed(&mut response.quote.attest, &mut numbers),
            _ => changed(&mut response.quote.signature, &mut numbers),
        }
        let same = response == GOOD.response;
        kept += usize::from(same);
        match case.respond(&response) {
            Ok(_) if same => {}
            // An ECDSA signature can have other valid forms, but the signed data has only one form.
            Ok(_) => {
                accepted += 1;
                response.quote.signature = GOOD.response.quote.signature.clone();
                assert_eq!(response, GOOD.response);
            }
            Err(Refusal::Deny(_)) => assert!(!same),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(
        kept < MUTATIONS / 10 && accepted < MUTATIONS / 100,
        "{kept} {accepted}"
    );
}

#[test]
fn a_changed_enrollment_is_never_challenged_for_another_tpm() {
    let mut case = Case::valid();
    let endorsement = GOOD.enrolment.keys.endorsement.clone();
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let mut challenged = 0;
    for number in 0..MUTATIONS {
        let mut enrolment = GOOD.enrolment.clone();
        match numbers.below(2) {
            0 => changed(&mut enrolment.keys.endorsement, &mut numbers),
            _ => changed(&mut enrolment.keys.attestation, &mut numbers),
        }
        // Half of the runs use a list of endorsement keys. In the other half, the platform reports the key.
        if number == MUTATIONS / 2 {
            case.settings.endorsement_keys.allow_list.clear();
            case.platform = Arc::new(FakePlatform::Knows(digest(&machine())));
        }
        match case.enrol(&enrolment) {
            // A changed attestation key is a different key. The TPM does not contain this key, so it cannot open a
            // challenge for it.
            Err(Refusal::Fail(Failure::ChallengeIssued { .. })) => {
                challenged += 1;
                assert_eq!(enrolment.keys.endorsement, endorsement);
                let attestation = &enrolment.keys.attestation;
                let before = &GOOD.enrolment.keys.attestation;
                assert_eq!(attestation[..20], before[..20]);
            }
            Err(Refusal::Deny(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(challenged < MUTATIONS / 10, "{challenged}");
}

#[test]
fn a_mutated_response_is_denied_or_has_the_same_content() {
    let case = Case::valid();
    let verifier = case.verifier();
    let good = TpmEvidence::Respond(GOOD.response.clone()).to_json();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c16);
    for _ in 0..MUTATIONS / 10 {
        let mut evidence = good.clone();
        changed(&mut evidence, &mut numbers);
        // The check of the chain detects this fault earlier.
        let is_v1 = version_of(&evidence).is_ok_and(|version| version == EvidenceVersion::V1);
        if is_v1 && case.decide_by(&verifier, Some(&evidence)).is_ok() {
            let TpmEvidence::Respond(mut response) = TpmEvidence::parse(&evidence).unwrap() else {
                panic!("another phase");
            };
            response.quote.signature = GOOD.response.quote.signature.clone();
            assert_eq!(response, GOOD.response);
        }
    }
}
