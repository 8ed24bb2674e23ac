//! Tests of keys with invalid properties.

use std::collections::BTreeMap;

use kubelet_authenticator_test_support::tpm_machine::{SoftwareKey, forged_quote};

use super::*;
use crate::fixture::{REGISTERS, answer, enrolment};

/// The position of the attributes in a `TPMT_PUBLIC`.
const ATTRIBUTES: std::ops::Range<usize> = 4..8;

/// The results of the first request and of the response, if both contain these public areas.
fn both(
    case: &Case,
    endorsement: Option<&[u8]>,
    attestation: Option<&[u8]>,
) -> [Result<Assurance, Refusal>; 2] {
    let mut good = GOOD.clone();
    for keys in [&mut good.enrolment.keys, &mut good.response.keys] {
        if let Some(endorsement) = endorsement {
            keys.endorsement = endorsement.to_vec();
        }
        if let Some(attestation) = attestation {
            keys.attestation = attestation.to_vec();
        }
    }
    [case.enrol(&good.enrolment), case.respond(&good.response)]
}

#[track_caller]
fn attestation_denied(public: &[u8]) -> TpmDenial {
    let [enrol, respond] = both(&Case::valid(), None, Some(public));
    let denial = denied(enrol);
    assert_eq!(denied(respond), denial);
    denial
}

#[track_caller]
fn endorsement_denied(public: &[u8]) -> TpmDenial {
    let [enrol, respond] = both(&Case::valid(), Some(public), None);
    let denial = denied(enrol);
    assert_eq!(denied(respond), denial);
    denial
}

#[test]
fn an_unrestricted_or_exportable_attestation_key_is_denied() {
    let software = SoftwareKey::generate();
    for (key, attributes) in [
        (AttestationKey::unrestricted(), 0x0004_0472),
        (AttestationKey::exportable(), 0x0005_0460),
        (AttestationKey::imported(&software), 0x0005_0440),
        (AttestationKey::software(&software), 0x0004_0040),
    ] {
        let public = machine().with_attestation_key(key.clone()).ak_public();

        assert_eq!(
            attestation_denied(&public),
            TpmDenial::AttestationKeyAttributes(attributes),
            "{key:?}"
        );
    }
}

#[test]
fn every_attribute_bit_of_the_attestation_key_is_checked() {
    let good = &GOOD.enrolment.keys.attestation;
    for bit in 0..32 {
        let mut public = good.clone();
        public[7 - bit / 8] ^= 1 << (bit % 8);
        let attributes = u32::from_be_bytes(public[ATTRIBUTES].try_into().unwrap());

        assert_eq!(
            attestation_denied(&public),
            TpmDenial::AttestationKeyAttributes(attributes),
            "bit {bit}"
        );
    }
}

#[test]
fn a_key_with_a_policy_is_denied() {
    let good = &GOOD.enrolment.keys.attestation;
    let public = [&good[..8], &[0, 32], &[7; 32], &good[10..]].concat();

    assert_eq!(attestation_denied(&public), TpmDenial::AttestationKeyPolicy);
}

#[test]
fn a_key_with_software_attributes_is_denied() {
    let software = SoftwareKey::generate();
    for attributes in [0x0004_0040, 0x0005_0440, 0x0005_0442, 0x0005_0462] {
        assert_eq!(
            attestation_denied(&software.public(attributes)),
            TpmDenial::AttestationKeyAttributes(attributes)
        );
    }
}

#[test]
fn a_tpm_does_not_open_the_secret_of_a_forged_software_key() {
    let case = Case::valid();
    let software = SoftwareKey::generate();
    let mut enrolment = GOOD.enrolment.clone();
    enrolment.keys.attestation = software.public(0x0005_0472);
    let challenge = case.challenge(&enrolment);
    for key in [
        AttestationKey::ecdsa(),
        AttestationKey::software(&software),
        AttestationKey::imported(&software),
    ] {
        let opened = machine()
            .with_attestation_key(key)
            .activate(&challenge.credential_blob, &challenge.encrypted_secret);
        assert!(opened.unwrap_err().contains("0x1DF"));
    }

    // With these attributes, the key can sign any data. However, the attacker does not have the secret.
    let registers: BTreeMap<u8, &[u8]> = GOOD.response.quote.registers.iter().collect();
    let qualifying = case.qualifying(&challenge, &[7; 32]);
    let attest = forged_quote(&enrolment.keys.attestation, &qualifying, &registers);
    let mut response = answer(
        &enrolment,
        &challenge,
        machine().quote(&qualifying, &REGISTERS),
    );
    response.quote.signature = software.sign(&attest);
    response.quote.attest = attest;
    assert_eq!(
        denied(case.respond(&response)),
        TpmDenial::QuoteOfAnotherRequest
    );
}

#[test]
fn a_curve_point_in_another_encoding_is_denied() {
    let good = &GOOD.enrolment.keys.attestation;
    let (head, point) = good.split_at(good.len() - 68);
    let (x, y) = (&point[2..34], &point[36..]);
    let with = |x: &[u8], y: &[u8]| {
        let sized = |bytes: &[u8]| crate::structure::sized(bytes).unwrap();
        [head, &sized(x), &sized(y)].concat()
    };
    assert_eq!(with(x, y), *good);
    let longer = "a coordinate is too long for its curve";
    let off = "the point is not on P-256";
    for (what, public, detail) in [
        ("padded", with(&[&[0], x].concat(), y), longer),
        ("compressed", with(&[&[2], x].concat(), &[]), longer),
        ("in one", with(&[&[4], x, y].concat(), &[]), longer),
        ("infinity", with(&[], &[]), off),
        ("off the curve", with(y, x), off),
        ("zero", with(&[0; 32], &[0; 32]), off),
    ] {
        assert_eq!(
            attestation_denied(&public),
            TpmDenial::AttestationKeyMalformed(detail),
            "{what}"
        );
    }
}

#[test]
fn a_key_with_an_unsupported_signature_scheme_is_denied() {
    for key in [AttestationKey::sha1_ecdsa(), AttestationKey::sha1_rsassa()] {
        let public = machine().with_attestation_key(key.clone()).ak_public();

        assert_eq!(
            attestation_denied(&public),
            TpmDenial::AttestationKeyAlgorithm,
            "{key:?}"
        );
    }
    let ecdsa = &GOOD.enrolment.keys.attestation;
    let rsassa = machine().with_attestation_key(AttestationKey::rsassa());
    let rsassa = rsassa.ak_public();
    let with = |public: &[u8], at: usize, value: u8| {
        let mut public = public.to_vec();
        assert_ne!(public[at], value);
        public[at] = value;
        public
    };
    for (what, public) in [
        ("named by SHA-1", with(ecdsa, 3, 0x04)),
        ("ECDAA", [&ecdsa[..13], &[0x1a], &ecdsa[14..]].concat()),
        ("EC-Schnorr", with(ecdsa, 13, 0x1c)),
        ("SHA-384", with(ecdsa, 15, 0x0c)),
        ("P-384", with(ecdsa, 17, 0x04)),
        ("RSAPSS", with(&rsassa, 13, 0x16)),
        ("RSASSA with SHA-384", with(&rsassa, 15, 0x0c)),
        ("1024 bits", with(&rsassa, 16, 0x04)),
        ("an exponent of its own", with(&rsassa, 21, 0x03)),
    ] {
        let denial = attestation_denied(&public);
        assert_eq!(denial, TpmDenial::AttestationKeyAlgorithm, "{what}");
    }
}

#[test]
fn a_public_area_with_trailing_bytes_is_denied() {
    for kind in Kind::ALL {
        let machine = machine().with_endorsement_key(kind);
        let good = machine.ek_public();
        let mut case = Case::of_nobody();
        case.allow("m1", digest(&machine));
        for changed in unstructured(&good) {
            let [enrol, respond] = both(&case, Some(&changed), None);
            for decided in [enrol, respond] {
                let denial = denied(decided);
                assert!(
                    matches!(denial, TpmDenial::EndorsementKeyMalformed { .. }),
                    "{denial:?}"
                );
            }
        }
    }
    for changed in unstructured(&GOOD.enrolment.keys.attestation) {
        let denial = attestation_denied(&changed);
        assert!(
            matches!(denial, TpmDenial::AttestationKeyMalformed { .. }),
            "{denial:?}"
        );
    }
}

/// The cases are every prefix, trailing bytes, an incorrect length, and an unknown union selector.
fn unstructured(good: &[u8]) -> Vec<Vec<u8>> {
    let with = |at: usize, value: u8| {
        let mut changed = good.to_vec();
        changed[at] = value;
        changed
    };
    let prefixes = (1..good.len()).map(|len| good[..len].to_vec());
    prefixes
        .chain([
            [good, &[0]].concat(),
            [good, good].concat(),
            [&u16::try_from(good.len()).unwrap().to_be_bytes()[..], good].concat(),
            with(0, 0xff),
            with(1, 0xff),
            with(8, 0xff),
        ])
        .collect()
}

#[test]
fn an_endorsement_key_with_an_unknown_template_is_denied() {
    let good = &GOOD.enrolment.keys.endorsement;
    for at in (2..good.len() - 68).filter(|at| *at != 8) {
        for bit in 0..8 {
            let mut public = good.clone();
            public[at] ^= 1 << bit;

            let denial = endorsement_denied(&public);
            assert!(
                matches!(
                    denial,
                    TpmDenial::EndorsementKeyNotOfTemplate
                        | TpmDenial::EndorsementKeyMalformed { .. }
                ),
                "byte {at}: {denial:?}"
            );
        }
    }
    // The changed bytes are in the attributes and in the policy. The last key has a different use.
    for at in [4, 7, 10, 41] {
        let mut public = good.clone();
        public[at] ^= 1;
        assert_eq!(
            endorsement_denied(&public),
            TpmDenial::EndorsementKeyNotOfTemplate
        );
    }
    assert_eq!(
        endorsement_denied(&GOOD.enrolment.keys.attestation),
        TpmDenial::EndorsementKeyNotOfTemplate
    );
}

#[test]
fn an_invalid_endorsement_key_is_malformed() {
    let good = &GOOD.enrolment.keys.endorsement;
    let mut off_curve = good.clone();
    *off_curve.last_mut().unwrap() ^= 1;
    let rsa = machine().with_endorsement_key(Kind::Rsa2048).ek_public();
    let (head, modulus) = rsa.split_at(rsa.len() - 256);
    let small = [head, &[0x7f], &modulus[1..]].concat();
    let short = [&head[..head.len() - 2], &[0, 255], &modulus[1..]].concat();
    let even = [head, &modulus[..255], &[0]].concat();
    for (public, expected) in [
        (off_curve, "the point is not on P-256"),
        (small, "the modulus is not 2048 bits long"),
        (short, "the modulus is not 2048 bits long"),
        (even, "the modulus is even"),
    ] {
        assert_eq!(
            endorsement_denied(&public),
            TpmDenial::EndorsementKeyMalformed(expected)
        );
    }
}

#[test]
fn a_response_with_a_different_attestation_key_is_denied() {
    let case = Case::valid();
    // The key is valid and in the same TPM, but the secret was encrypted for the machine's other key.
    let other = machine().with_attestation_key(AttestationKey::rsassa());
    let opened = machine().activate(
        &GOOD.challenge.credential_blob,
        &GOOD.challenge.encrypted_secret,
    );
    let qualifying = case.qualifying(&GOOD.challenge, &opened.unwrap());
    let mut response = answer(
        &GOOD.enrolment,
        &GOOD.challenge,
        other.quote(&qualifying, &REGISTERS),
    );
    response.keys.attestation = other.ak_public();

    assert_eq!(
        denied(case.respond(&response)),
        TpmDenial::QuoteOfAnotherRequest
    );
}

#[test]
fn a_challenge_cannot_be_opened_by_another_tpm() {
    let case = Case::valid();
    let another = TpmMachine::new(ANOTHER.clone(), Kind::P256);
    // The attacker presents the machine's endorsement key, and their own attestation key.
    let mut enrolment = enrolment(&another);
    enrolment.keys.endorsement = GOOD.enrolment.keys.endorsement.clone();
    let challenge = case.challenge(&enrolment);

    for machine in [&another, &machine()] {
        let opened = machine.activate(&challenge.credential_blob, &challenge.encrypted_secret);
        opened.unwrap_err();
    }
    let qualifying = case.qualifying(&challenge, &[0; 32]);
    let quote = another.quote(&qualifying, &REGISTERS);
    assert_eq!(
        denied(case.respond(&answer(&enrolment, &challenge, quote))),
        TpmDenial::QuoteOfAnotherRequest
    );
}
