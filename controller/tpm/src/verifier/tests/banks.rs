//! Tests of quotes over banks other than SHA-256.

use kubelet_attestation::evidence::tpm::{Bank, Registers, Response};
use kubelet_authenticator_test_support::swtpm::Swtpm;

use node_attestation_core::crd::conditions::BOOT_MEASURED;
use node_attestation_core::verifier::Verifier as _;

use super::quotes::qualifying_data;
use super::*;
use crate::fixture::REGISTERS;

/// The value of a register in this bank, after the firmware has extended it with a separator.
const MEASURED: &str = "518923b0f955d08da077c96aaba522b9decede61c599cea6\
    c41889cfbea4ae4d50529d96fe4d1afdafb65e7f95bf23c4";

fn measured() -> Vec<u8> {
    data_encoding::HEXLOWER.decode(MEASURED.as_bytes()).unwrap()
}

/// Returns a valid case: a TPM whose only strong bank is SHA-384, and a valid response from its machine.
fn with_sha384() -> (Case, Response, Arc<Swtpm>) {
    quoted(Swtpm::with_banks("sha1,sha384"), &measured())
}

/// Returns the same as [`with_sha384`], for this TPM, whose registers contain this value.
fn quoted(tpm: Swtpm, value: &[u8]) -> (Case, Response, Arc<Swtpm>) {
    let tpm = Arc::new(tpm);
    let machine = TpmMachine::new(tpm.clone(), Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    let good = Good::of(&machine, &case);
    let secret = machine.activate(
        &good.challenge.credential_blob,
        &good.challenge.encrypted_secret,
    );
    let data = case.qualifying(&good.challenge, &secret.unwrap());
    let statement = machine.quote_over(&data, "sha384:0,4,7");
    let mut response = good.response;
    response.quote.attest = statement.attest;
    response.quote.signature = statement.signature;
    let values = REGISTERS.map(|number| (number, value.to_vec()));
    response.quote.registers = Registers::of_bank(Bank::Sha384, values.into()).unwrap();
    (case, response, tpm)
}

#[test]
fn a_quote_over_the_sha384_bank_is_accepted() {
    let (case, response, _tpm) = with_sha384();

    case.proves(&response);
    let quote = VerifiedQuote::verify(
        &crate::public::AttestationKey::parse(&response.keys.attestation).unwrap(),
        response.quote.clone(),
        &[Some(qualifying_data(&response)), None],
    );
    let written = quote.unwrap().to_string();
    let registers = format!(", 0={MEASURED}, 4={MEASURED}, 7={MEASURED}");
    assert!(written.ends_with(&registers), "{written}");
}

#[test]
fn a_quote_over_the_sha384_bank_with_other_registers_is_denied() {
    let (mut case, good, _tpm) = with_sha384();
    let of = |bank: Bank, changed: u8| {
        let digests = REGISTERS.map(|number| {
            let mut digest = measured();
            digest.truncate(bank.digest_len());
            digest[0] ^= u8::from(number == changed);
            (number, digest)
        });
        Registers::of_bank(bank, digests.into()).unwrap()
    };
    let another_bank = "its bank does not match the registers in the evidence";
    for (registers, denial) in [
        (of(Bank::Sha384, 4), TpmDenial::QuoteDigest),
        (
            of(Bank::Sha256, 23),
            TpmDenial::QuoteSelection(another_bank),
        ),
    ] {
        let mut response = good.clone();
        response.quote.registers = registers;

        assert_eq!(denied(case.respond(&response)), denial);
    }
    // The values in a policy are SHA-256 digests.
    let values = ["8", "4"].map(|register| (register.to_owned(), "1f".repeat(32)));
    case.settings.pcr_policy.allowed = vec![values.into()];
    assert_eq!(denied(case.respond(&good)), TpmDenial::RegisterNotQuoted(4));
}

#[test]
fn a_machine_with_an_unmeasured_sha384_bank_is_reported() {
    for (tpm, value, unmeasured) in [
        (Swtpm::with_banks("sha1,sha384"), measured(), 0),
        (
            Swtpm::unmeasured_with_banks("sha1,sha384"),
            vec![0; Bank::Sha384.digest_len()],
            1,
        ),
    ] {
        let (mut case, response, _tpm) = quoted(tpm, &value);
        let verifier = case.verifier();
        let evidence = TpmEvidence::Respond(response.clone()).to_json();
        assert!(case.decide_by(&verifier, Some(&evidence)).is_ok());

        let findings = verifier.findings(noon());

        assert_eq!(findings.unmeasured, Some(unmeasured));
        let mut conditions = findings.conditions.iter();
        let condition = conditions.find(|one| one.of == BOOT_MEASURED).unwrap();
        let is_named = condition.message.contains("m1 (registers 0, 4, 7)");
        assert_eq!(is_named, unmeasured == 1, "{condition:?}");
        assert!(!condition.message.contains("SHA-256 bank"), "{condition:?}");

        // With every policy, the denial for the firmware precedes the denial for a register that is not quoted.
        case.settings.pcr_policy.allowed = vec![[("9".to_owned(), "1f".repeat(32))].into()];
        let denial = match unmeasured {
            0 => TpmDenial::RegisterNotQuoted(9),
            _ => TpmDenial::RegisterNotMeasured(0),
        };
        assert_eq!(denied(case.respond(&response)), denial);
    }
}
