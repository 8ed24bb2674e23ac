use std::process::Command;
use std::sync::Arc;
use std::thread;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::prelude::*;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::tpm_proxy::{TpmProxy, command};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::bed::{KINDS, ask, assert_empty, bytes, keys_of};
use super::keys::tools;

const SECRET: [u8; 32] = [9; 32];

/// A request for a quote, with a credential for these keys that tpm2-tools created.
pub(super) fn question(maker: &TpmMachine, ek_public: &[u8], ak_name: &[u8]) -> Value {
    let (blob, secret) = maker.make_credential(ek_public, ak_name, &SECRET);
    json!({"Quote": {
        "endorsement": BASE64_STANDARD.encode(ek_public),
        "credential_blob": BASE64_STANDARD.encode(blob),
        "encrypted_secret": BASE64_STANDARD.encode(secret),
        "audience": "prod", "provider_id": "tpm://00", "node_name": "n1",
        "spki": BASE64_STANDARD.encode("spki"), "id": BASE64_STANDARD.encode([1; 16]),
        "pcrs": [0, 4, 7, 10, 11, 12, 13, 14, 23],
    }})
}

fn binding() -> [u8; 32] {
    let binding = KeyBinding::new(
        &Provider::TPM,
        &Audience::parse("prod").unwrap(),
        &ProviderId::parse("tpm://00").unwrap(),
        &NodeName::parse("n1").unwrap(),
        b"spki",
        &[&[1; 16], &SECRET],
    );
    *binding.as_bytes()
}

/// A buffer with its size.
fn sized(contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(contents.len()).unwrap();
    [&length.to_be_bytes(), contents].concat()
}

/// Two numbers of 32 bytes, each in a buffer with its size, from the structure after `skipped` bytes.
fn two_numbers(structure: &[u8], skipped: usize) -> Vec<u8> {
    let mut rest = &structure[skipped..];
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let (length, after) = rest.split_first_chunk().unwrap();
        let (number, after) = after.split_at(u16::from_be_bytes(*length).into());
        numbers.extend(vec![0; 32 - number.len()]);
        numbers.extend(number);
        rest = after;
    }
    assert!(rest.is_empty());
    numbers
}

/// Whether `signature` is a valid ECDSA signature with SHA-256 (`TPMT_SIGNATURE`) over `message` by the key `public`
/// (`TPMT_PUBLIC`).
fn is_signed(public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let point = [&[4][..], &two_numbers(public, 20)].concat();
    assert_eq!(&signature[..4], [0, 0x18, 0, 0x0b]);
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
        .verify(message, &two_numbers(signature, 4))
        .is_ok()
}

#[test]
fn a_quote_covers_the_binding_and_the_opened_secret() {
    let tpm = Arc::new(Swtpm::start());
    tpm.extend(4, &[1; 32]);
    for (name, kind) in KINDS {
        let machine = TpmMachine::new(tpm.clone(), kind);
        let asked = question(&machine, &machine.ek_public(), &machine.ak_name());

        let answer = ask(&tpm.tcti(), &asked);

        let quoted = &answer["Ok"];
        assert_eq!(bytes(quoted, "attestation"), machine.ak_public(), "{name}");
        let attest = bytes(quoted, "attest");
        assert!(attest.windows(34).any(|part| part == sized(&binding())));
        let signature = bytes(quoted, "signature");
        assert!(
            is_signed(&machine.ak_public(), &attest, &signature),
            "{name}"
        );
        let registers = quoted["pcrs"].as_object().unwrap();
        assert_eq!(registers.len(), 9, "{name}");
        for (number, value) in registers {
            let value = data_encoding::HEXLOWER.decode(value.as_str().unwrap().as_bytes());
            assert_eq!(value.unwrap(), tpm.pcr(number.parse().unwrap()), "{name}");
        }
    }
    assert_empty(&tpm);
}

/// The values of these registers, as read by tpm2-tools.
fn values_by_tools(tpm: &Swtpm, selection: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values");
    let output = Command::new("tpm2_pcrread")
        .args([selection, "-o", file.to_str().unwrap()])
        .env("TPM2TOOLS_TCTI", tpm.tcti())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::read(file).unwrap()
}

#[test]
fn a_quote_covers_the_sha384_bank_if_the_tpm_has_no_sha256_bank() {
    let numbers = "0,4,7,10,11,12,13,14,23";
    for (banks, quoted) in [
        ("sha1,sha384", "sha384"),
        ("sha384", "sha384"),
        ("sha256,sha384", "sha256"),
    ] {
        let tpm = Arc::new(Swtpm::with_banks(banks));
        let digits = if quoted == "sha384" { 96 } else { 64 };
        tools(
            &tpm,
            &[&format!(
                "tpm2_pcrextend 4:{quoted}={}",
                "01".repeat(digits / 2)
            )],
        );
        let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P256);
        let asked = question(&machine, &machine.ek_public(), &machine.ak_name());

        let answer = ask(&tpm.tcti(), &asked);

        let registers = answer["Ok"]["pcrs"].as_object().unwrap();
        let mut digests: Vec<(u8, &str)> = registers
            .iter()
            .map(|(number, digest)| (number.parse().unwrap(), digest.as_str().unwrap()))
            .collect();
        digests.sort_unstable();
        let values: String = digests.iter().map(|(_, digest)| *digest).collect();
        let expected = values_by_tools(&tpm, &format!("{quoted}:{numbers}"));
        assert_eq!(values, data_encoding::HEXLOWER.encode(&expected), "{banks}");
        assert_eq!(values.len(), 9 * digits, "{banks}");
        let attest = bytes(&answer["Ok"], "attest");
        let digest = Sha256::digest(&expected);
        assert!(
            attest.ends_with(&digest),
            "{banks}: SHA-256, as the signature"
        );
        let signature = bytes(&answer["Ok"], "signature");
        assert!(
            is_signed(&machine.ak_public(), &attest, &signature),
            "{banks}"
        );
        assert_empty(&tpm);
    }
}

#[test]
fn a_thousand_enrollments_leave_no_objects_in_the_tpm() {
    let enrol = || {
        let tpm = Arc::new(Swtpm::start());
        let handles = |tpm: &Swtpm| {
            let persistent = tpm.persistent_handles();
            (tpm.transient_handles(), tpm.loaded_sessions(), persistent)
        };
        let before = handles(&tpm);
        let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P256);
        let asked = question(&machine, &machine.ek_public(), &machine.ak_name());
        for _ in 0..250 {
            assert!(keys_of(&tpm, Some("EccP256"))["Ok"].is_object());
            assert!(ask(&tpm.tcti(), &asked)["Ok"].is_object());
        }
        assert_eq!(handles(&tpm), before);
        assert_empty(&tpm);
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(enrol);
        }
    });
}

#[test]
fn a_join_costs_one_activation_and_one_quote_and_shows_no_secret() {
    let tpm = Arc::new(Swtpm::start());
    for (name, kind) in KINDS {
        let machine = TpmMachine::new(tpm.clone(), kind);
        let asked = question(&machine, &machine.ek_public(), &machine.ak_name());
        let blob = BASE64_STANDARD.decode(asked["Quote"]["credential_blob"].as_str().unwrap());
        let proxy = TpmProxy::before(&tpm);
        let keys = json!({"Keys": {"endorsement_key": name}});

        assert!(ask(&proxy.tcti(), &keys)["Ok"].is_object());
        assert!(ask(&proxy.tcti(), &asked)["Ok"].is_object());

        assert_eq!(proxy.count(command::ACTIVATE_CREDENTIAL), 1, "{name}");
        assert_eq!(proxy.count(command::QUOTE), 1, "{name}");
        let kept = kind != EndorsementKey::P256;
        let made = if kept { 2 } else { 4 };
        assert_eq!(proxy.count(command::CREATE_PRIMARY), made, "{name}");
        assert!(
            !proxy.carried(&SECRET) && !proxy.carried(&blob.unwrap()),
            "{name}"
        );
    }
    assert_empty(&tpm);
}
