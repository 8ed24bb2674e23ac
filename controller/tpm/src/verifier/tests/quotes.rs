//! Tests of quotes with invalid properties.

use aws_lc_rs::digest::{SHA256, digest as hash};
use kubelet_attestation::evidence::tpm::{Quote, Registers, Response};
use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
use kubelet_authenticator_test_support::tpm_machine::Statement;
use node_attestation_core::crd::OsSeparator;
use node_attestation_core::verifier::TpmBoot;

use super::*;
use crate::fixture::{REGISTERS, TPM};

/// The response with a different quote.
fn with(change: impl FnOnce(&mut Quote)) -> Response {
    let mut response = GOOD.response.clone();
    change(&mut response.quote);
    response
}

fn with_statement(statement: Statement) -> Response {
    with(|quote| {
        quote.attest = statement.attest;
        quote.signature = statement.signature;
    })
}

#[track_caller]
fn quote_denied(response: &Response) -> TpmDenial {
    denied(Case::valid().respond(response))
}

/// The qualifying data in the valid quote.
fn qualifying() -> Vec<u8> {
    let opened = machine().activate(
        &GOOD.challenge.credential_blob,
        &GOOD.challenge.encrypted_secret,
    );
    let qualifying = Case::valid().qualifying(&GOOD.challenge, &opened.unwrap());
    qualifying.to_vec()
}

#[test]
fn a_signature_by_an_unrestricted_key_is_denied() {
    let forger = machine().with_attestation_key(AttestationKey::unrestricted());
    let signature = forger.sign(&GOOD.response.quote.attest).unwrap();

    let response = with(|quote| quote.signature = signature.clone());
    assert_eq!(quote_denied(&response), TpmDenial::QuoteSignatureInvalid);
    let mut own = response;
    own.keys.attestation = forger.ak_public();
    assert_eq!(
        quote_denied(&own),
        TpmDenial::AttestationKeyAttributes(0x0004_0472)
    );
}

#[test]
fn a_relayed_quote_from_another_machine_is_denied() {
    let another = TpmMachine::new(ANOTHER.clone(), Kind::P256);
    let quote = another.quote(&qualifying(), &REGISTERS);
    let relayed = with_statement(Statement {
        attest: quote.attest,
        signature: quote.signature,
    });

    assert_eq!(quote_denied(&relayed), TpmDenial::QuoteSignatureInvalid);
}

#[test]
fn a_signature_over_data_from_outside_the_tpm_is_denied() {
    for message in [&br#"{"pcrs":{}}"#[..], b"\xff\x54\x43", b"", &[0xff; 145]] {
        let signature = machine().sign_with_ticket(message).unwrap();
        let mut attest = message.to_vec();
        // Evidence cannot contain an empty structure.
        if attest.is_empty() {
            attest.push(0);
        }
        let response = with_statement(Statement {
            attest: attest.clone(),
            signature,
        });

        let expected = if attest == message {
            TpmDenial::QuoteNotMadeByTpm
        } else {
            TpmDenial::QuoteSignatureInvalid
        };
        assert_eq!(quote_denied(&response), expected);
    }
    // If the data begins with the magic of the TPM's own statements, the TPM refuses to sign.
    let refused = machine().sign_with_ticket(&GOOD.response.quote.attest);
    refused.unwrap_err();
}

#[test]
fn a_signed_statement_of_another_kind_is_not_accepted_as_a_quote() {
    let (machine, data) = (machine(), qualifying());
    for (statement, tag) in [
        (machine.certify(&AttestationKey::unrestricted()).1, 0x8017),
        (machine.creation(&data), 0x801a),
        (machine.time(&data), 0x8019),
        (machine.index(&data, b"contents"), 0x8014),
    ] {
        assert_eq!(
            quote_denied(&with_statement(statement)),
            TpmDenial::QuoteOfAnotherKind(tag)
        );
    }
}

#[test]
fn a_quote_with_different_qualifying_data_is_denied() {
    let data = qualifying();
    let mut other = data.clone();
    other[31] ^= 1;
    let empty: &[u8] = &[];
    for wrong in [
        empty,
        &[0x00, 0xff, 0x55, 0xaa],
        &data[..31],
        &data[1..],
        &[&data[..], &[0]].concat(),
        &[0; 32],
        &other,
    ] {
        let statement = machine().quote_over(wrong, "sha256:0,4,7");

        assert_eq!(
            quote_denied(&with_statement(statement)),
            TpmDenial::QuoteOfAnotherRequest,
            "{wrong:x?}"
        );
    }
    let right = machine().quote_over(&data, "sha256:0,4,7");
    Case::valid().proves(&with_statement(right));
}

#[test]
fn a_key_outside_the_endorsement_hierarchy_is_denied() {
    let machine = machine().with_attestation_key(AttestationKey::of_the_owner());
    let case = Case::valid();
    // The public area of the key is valid, and its TPM opens the secret.
    let good = Good::of(&machine, &case);

    assert_eq!(
        denied(case.respond(&good.response)),
        TpmDenial::QuoteOfAnotherSigner
    );
}

#[test]
fn a_signature_algorithm_that_does_not_match_the_key_is_denied() {
    let rsassa = machine().with_attestation_key(AttestationKey::rsassa());
    let good = Good::of(&rsassa, &Case::valid());
    let mut ecdsa_key = GOOD.response.clone();
    ecdsa_key.quote.signature = good.response.quote.signature.clone();
    // The signatures do not change, but their declared hash is SHA-1 or SHA-384.
    let mut other_hashes = Vec::new();
    for hash in [0x04, 0x0c] {
        for mut response in [GOOD.response.clone(), good.response.clone()] {
            assert_eq!(response.quote.signature[2..4], [0, 0x0b]);
            response.quote.signature[3] = hash;
            other_hashes.push(response);
        }
    }
    let mut rsa_key = good.response;
    rsa_key.quote.signature = GOOD.response.quote.signature.clone();
    // The quote contains TPM_ALG_HMAC with a SHA-256 digest, and no signature.
    let hmac = with(|quote| quote.signature = [&[0, 5, 0, 0x0b][..], &[0; 32]].concat());
    let none = with(|quote| quote.signature = vec![0, 0x10]);
    for response in [ecdsa_key, rsa_key, hmac, none]
        .into_iter()
        .chain(other_hashes)
    {
        assert_eq!(
            quote_denied(&response),
            TpmDenial::QuoteSignatureAlgorithm,
            "{:x?}",
            response.quote.signature
        );
    }
}

#[test]
fn a_signature_with_changed_numbers_is_denied() {
    let good = &GOOD.response.quote.signature;
    let (r, s) = (&good[4..38], &good[38..]);
    assert_eq!(
        (good.len(), &r[..2], &s[..2]),
        (72, &[0, 32][..], &[0, 32][..])
    );
    let numbers = |r: &[u8], s: &[u8]| [&good[..4], r, s].concat();
    let zero = [&[0, 32][..], &[0; 32]].concat();
    let invalid = TpmDenial::QuoteSignatureInvalid;
    let long = |bytes: &[u8]| [&[0, 33, 0][..], &bytes[2..]].concat();
    let too_long = TpmDenial::QuoteSignatureMalformed(
        "one of its numbers is longer than the order of the curve",
    );
    for (what, signature, expected) in [
        ("swapped", numbers(s, r), &invalid),
        ("r = 0", numbers(&zero, s), &invalid),
        ("s = 0", numbers(r, &zero), &invalid),
        ("both 0", numbers(&zero, &zero), &invalid),
        ("no r", numbers(&[0, 0], s), &invalid),
        ("no numbers", numbers(&[0, 0], &[0, 0]), &invalid),
        (
            "r = -1",
            numbers(&[&[0, 32][..], &[0xff; 32]].concat(), s),
            &invalid,
        ),
        ("a longer r", numbers(&long(r), s), &too_long),
        ("a longer s", numbers(r, &long(s)), &too_long),
    ] {
        let denial = quote_denied(&with(|quote| quote.signature = signature));
        assert_eq!(denial, *expected, "{what}");
    }
    let mut rsassa = Good::of(
        &machine().with_attestation_key(AttestationKey::rsassa()),
        &Case::valid(),
    )
    .response;
    let cut = rsassa.quote.signature.split_off(200);
    assert!(!cut.is_empty());
    rsassa.quote.signature[4..6].copy_from_slice(&[0, 194]);
    assert_eq!(quote_denied(&rsassa), TpmDenial::QuoteSignatureInvalid);
}

#[test]
fn a_signature_with_sha1_is_denied() {
    let sha1 = machine().with_attestation_key(AttestationKey::sha1_ecdsa());
    let statement = sha1.quote_over(&qualifying(), "sha256:0,4,7");

    assert_eq!(
        quote_denied(&with_statement(statement)),
        TpmDenial::QuoteSignatureAlgorithm
    );
}

#[test]
fn a_quote_over_other_registers_or_banks_is_denied() {
    let banks = Arc::new(Swtpm::with_banks("sha1,sha256"));
    let machine = TpmMachine::new(banks, Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    let good = Good::of(&machine, &case);
    let secret = machine.activate(
        &good.challenge.credential_blob,
        &good.challenge.encrypted_secret,
    );
    let data = case.qualifying(&good.challenge, &secret.unwrap());
    for (selection, detail) in [
        (
            "sha256:0,4",
            "it does not cover the registers in the evidence",
        ),
        (
            "sha256:0,4,7,8",
            "it does not cover the registers in the evidence",
        ),
        (
            "sha256:0,4,8",
            "it does not cover the registers in the evidence",
        ),
        (
            "sha1:0,4,7",
            "its bank does not match the registers in the evidence",
        ),
        ("sha256:0,4,7+sha1:0", "it does not cover exactly one bank"),
        (
            "sha1:0,4,7+sha256:0,4,7",
            "it does not cover exactly one bank",
        ),
    ] {
        let statement = machine.quote_over(&data, selection);
        let mut response = good.response.clone();
        response.quote.attest = statement.attest;
        response.quote.signature = statement.signature;

        assert_eq!(
            denied(case.respond(&response)),
            TpmDenial::QuoteSelection(detail),
            "{selection}"
        );
    }
}

#[test]
fn a_quote_without_registers_is_denied() {
    let machine = TpmMachine::new(Arc::new(Swtpm::with_banks("sha1")), Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    let mut good = Good::of(&machine, &case);
    assert_eq!(good.response.quote.registers, Registers::default());
    let no_register = TpmDenial::QuoteSelection("it covers no register");

    assert_eq!(denied(case.respond(&good.response)), no_register);
    good.response.quote.registers = GOOD.response.quote.registers.clone();
    assert_eq!(denied(case.respond(&good.response)), no_register);
}

#[test]
fn register_values_that_do_not_match_the_quote_are_denied() {
    let good = &GOOD.response.quote.registers;
    for changed in REGISTERS {
        let registers = good.iter().map(|(number, value)| {
            let mut value: [u8; 32] = value.try_into().unwrap();
            value[31] ^= u8::from(number == changed);
            (number, value)
        });
        let registers = Registers::new(registers.collect()).unwrap();

        let denial = quote_denied(&with(|quote| quote.registers = registers));
        assert_eq!(denial, TpmDenial::QuoteDigest, "{changed}");
    }
}

#[test]
fn a_quote_or_signature_with_trailing_bytes_is_denied() {
    let Quote {
        attest, signature, ..
    } = &GOOD.response.quote;
    let longer = [&signature[..], &[0]].concat();
    let lies = [&signature[..4], &[0xff], &signature[5..]].concat();
    let unknown = [&[0xff], &signature[1..]].concat();
    let prefixes = (1..signature.len()).map(|len| signature[..len].to_vec());
    for changed in prefixes.chain([longer, lies, unknown]) {
        let denial = quote_denied(&with(|quote| quote.signature = changed));
        assert_eq!(
            denial,
            TpmDenial::QuoteSignatureMalformed("it is not exactly one TPMT_SIGNATURE")
        );
    }
    for changed in [[&attest[..], &[0]].concat(), attest[..144].to_vec()] {
        let denial = quote_denied(&with(|quote| quote.attest = changed));
        assert_eq!(denial, TpmDenial::QuoteSignatureInvalid);
    }
}

/// The qualifying data in a quote with a key whose Name uses SHA-256.
pub(super) fn qualifying_data(response: &Response) -> [u8; 32] {
    response.quote.attest[44..76].try_into().unwrap()
}

/// The boot counters in the TPM's quote.
#[track_caller]
fn boot(machine: &TpmMachine, case: &Case) -> TpmBoot {
    let good = Good::of(machine, case);
    case.proves(&good.response).identity().boot.unwrap()
}

#[test]
fn a_copied_tpm_has_lower_boot_counters_than_the_original() {
    let tpm = Arc::new(Swtpm::start());
    let machine = TpmMachine::new(tpm.clone(), Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    let copy = Arc::new(Swtpm::copy_of(&tpm));
    tpm.reset(Reset::Orderly);
    tpm.reset(Reset::Orderly);
    let original = boot(&machine, &case);

    let copied = boot(&TpmMachine::new(copy, Kind::P256), &case);
    assert!(copied.resets < original.resets && copied < original);

    tpm.reset(Reset::Resume);
    let resumed = boot(&machine, &case);
    assert_eq!(resumed.restarts, original.restarts + 1);
    assert!(resumed > original);

    tpm.clear();
    let cleared = boot(&machine, &case);
    assert_eq!((cleared.resets, cleared.restarts), (0, 0));
    assert!(cleared < original);
}

#[test]
fn an_unsafe_tpm_clock_is_recorded_but_not_denied() {
    let tpm = Arc::new(Swtpm::unmeasured());
    let machine = TpmMachine::new(tpm.clone(), Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    let before = boot(&machine, &case);
    tpm.reset(Reset::Hard);

    let good = Good::of(&machine, &case);
    let after = case.proves(&good.response).identity().boot.unwrap();
    let quote = VerifiedQuote::verify(
        &crate::public::AttestationKey::parse(&good.response.keys.attestation).unwrap(),
        good.response.quote.clone(),
        &[Some(qualifying_data(&good.response)), None],
    );
    let written = quote.unwrap().to_string();
    assert!(
        written.contains(" (not safe), firmware 20191023"),
        "{written}"
    );
    let zero = "0".repeat(64);
    let registers = format!(", 0={zero}, 4={zero}, 7={zero}");
    assert!(written.ends_with(&registers), "{written}");

    // The firmware version, the selection and the digest follow this field.
    let attest = &good.response.quote.attest;
    assert_eq!(attest[attest.len() - 34 - 10 - 8 - 1], 0, "it is safe");
    assert!(after > before);
}

#[test]
fn a_changed_boot_chain_is_denied_with_the_changed_register() {
    let tpm = Arc::new(Swtpm::copy_of(&TPM));
    let machine = TpmMachine::new(tpm.clone(), Kind::P256);
    let mut case = Case::valid();
    let policy = &mut case.settings.pcr_policy;
    let booted = data_encoding::HEXLOWER.encode(&tpm.pcr(4));
    policy.allowed = vec![
        [
            ("4".to_owned(), booted.clone()),
            ("7".to_owned(), booted.clone()),
        ]
        .into(),
        [("0".to_owned(), "1".repeat(64))].into(),
    ];
    let good = Good::of(&machine, &case);
    case.proves(&good.response);

    tpm.extend(4, &[1; 32]);
    let changed = Good::of(&machine, &case);
    let TpmDenial::RegisterNotAllowed {
        register, value, ..
    } = denied(case.respond(&changed.response))
    else {
        panic!("another reason");
    };
    assert_eq!(register, 4);
    assert_eq!(value, data_encoding::HEXLOWER.encode(&tpm.pcr(4)));

    tpm.reset(Reset::Orderly);
    case.proves(&Good::of(&machine, &case).response);
    case.settings.pcr_policy.allowed = vec![[("8".to_owned(), booted)].into()];
    assert_eq!(
        denied(case.respond(&GOOD.response)),
        TpmDenial::RegisterNotQuoted(8)
    );
    case.settings.pcr_policy.allowed.clear();
    case.proves(&GOOD.response);
    case.proves(&changed.response);
}

#[test]
fn the_policy_decides_about_the_systemd_separator_in_a_quote() {
    let tpm = Arc::new(Swtpm::copy_of(&TPM));
    let machine = TpmMachine::new(tpm.clone(), Kind::P256);
    let mut case = Case::valid();
    let booted = data_encoding::HEXLOWER.encode(&tpm.pcr(4));
    let state = ["4", "7"].map(|register| (register.to_owned(), booted.clone()));
    case.settings.pcr_policy.allowed = vec![state.into()];
    let plain = Good::of(&machine, &case).response;
    let separator = hash(&SHA256, b"os-separator");
    let separator: [u8; 32] = separator.as_ref().try_into().unwrap();
    for register in [4, 7] {
        tpm.extend(register, &separator);
    }
    let separated = Good::of(&machine, &case).response;

    for (os_separator, expected) in [
        (OsSeparator::Permitted, [None, None]),
        (OsSeparator::Required, [Some("OsSeparatorMissing"), None]),
        (OsSeparator::Refused, [None, Some("OsSeparatorRefused")]),
    ] {
        case.settings.pcr_policy.os_separator = os_separator;
        for (response, expected) in [&plain, &separated].into_iter().zip(expected) {
            if let Some(expected) = expected {
                let denial = denied(case.respond(response));
                assert_eq!(denial.reason(), expected, "{os_separator:?}");
            } else {
                case.proves(response);
            }
        }
    }
}
