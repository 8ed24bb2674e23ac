use std::sync::Arc;

use base64::prelude::*;
use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use serde_json::{Value, json};

use super::bed::{KINDS, ask, assert_empty, keys_of, output};
use super::liar::liar;
use super::quotes::question;

fn code(answer: &Value) -> u64 {
    answer["Err"]["Code"]["code"]
        .as_u64()
        .unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_challenge_for_another_tpm_or_key_is_not_reported_as_a_failure() {
    let (this, other) = (Arc::new(Swtpm::start()), Arc::new(Swtpm::start()));
    for (name, kind) in KINDS {
        let (machine, stranger) = (
            TpmMachine::new(this.clone(), kind),
            TpmMachine::new(other.clone(), kind),
        );
        let refused = json!({"Err": "OtherChallenge"});

        let mut asked = question(&machine, &stranger.ek_public(), &machine.ak_name());
        asked["Quote"]["endorsement"] = BASE64_STANDARD.encode(machine.ek_public()).into();
        assert_eq!(ask(&this.tcti(), &asked), refused, "{name}: another TPM");
        let asked = question(&machine, &machine.ek_public(), &stranger.ak_name());
        assert_eq!(ask(&this.tcti(), &asked), refused, "{name}: another key");
        let mut asked = question(&machine, &machine.ek_public(), &machine.ak_name());
        asked["Quote"]["encrypted_secret"] = BASE64_STANDARD.encode([0; 7]).into();
        assert_eq!(ask(&this.tcti(), &asked), refused, "{name}: nonsense");
    }
    assert_empty(&this);
}

#[test]
fn an_endorsement_key_of_another_tpm_is_refused() {
    let (this, other) = (Arc::new(Swtpm::start()), Arc::new(Swtpm::start()));
    let stranger = TpmMachine::new(other, EndorsementKey::P384);
    let machine = TpmMachine::new(this.clone(), EndorsementKey::P384);

    let asked = question(&machine, &stranger.ek_public(), &machine.ak_name());

    assert_eq!(ask(&this.tcti(), &asked), json!({"Err": "OtherKey"}));
    assert_empty(&this);
}

#[test]
fn a_quote_over_a_missing_bank_fails() {
    let tpm = Arc::new(Swtpm::with_banks("sha1"));
    let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P384);

    let asked = question(&machine, &machine.ek_public(), &machine.ak_name());

    assert_eq!(ask(&tpm.tcti(), &asked), json!({"Err": "NoBank"}));
    assert_empty(&tpm);
    // A TPM without SHA-384 returns TPM_RC_HASH for the second parameter.
    let proxy = TpmProxy::before(&tpm);
    let quote = Commands::One(command::QUOTE);
    proxy.inject(quote, Times::always(), Fault::Answer(0x2c3));
    assert_eq!(ask(&proxy.tcti(), &asked), json!({"Err": "NoBank"}));
}

#[test]
fn the_helper_prints_its_version_without_a_tpm() {
    let nowhere = "swtpm:host=127.0.0.1,port=1";
    let version = json!({"Ok": {"version": env!("CARGO_PKG_VERSION")}});

    assert_eq!(ask(nowhere, &json!({"Version": {}})), version);
    // A request for the keys requires access to the TPM.
    code(&ask(nowhere, &json!({"Keys": {"endorsement_key": null}})));
}

#[test]
fn the_error_reports_a_tpm_in_failure_mode() {
    let tpm = Swtpm::start();
    tpm.break_down();

    assert_eq!(keys_of(&tpm, None), json!({"Err": "FailureMode"}));
}

#[test]
fn a_locked_out_tpm_can_attest() {
    let tpm = Arc::new(Swtpm::start());
    tpm.lock_out();
    for (name, kind) in KINDS {
        let machine = TpmMachine::new(tpm.clone(), kind);
        assert!(keys_of(&tpm, Some(name))["Ok"].is_object(), "{name}");
        let asked = question(&machine, &machine.ek_public(), &machine.ak_name());
        assert!(ask(&tpm.tcti(), &asked)["Ok"].is_object(), "{name}");
    }
    assert!(tpm.is_locked_out());
    assert_empty(&tpm);
}

#[test]
fn a_missing_tpm_is_reported_as_unreachable() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);

    let tcti = format!("swtpm:host=127.0.0.1,port={port}");
    let answer = ask(&tcti, &json!({"Keys": {"endorsement_key": null}}));

    assert_eq!(code(&answer) & 0xff_0000, 0xa_0000, "{answer}");
}

#[test]
fn an_invalid_command_is_rejected_without_a_tpm_call() {
    let nowhere = "swtpm:host=127.0.0.1,port=1";
    assert_eq!(ask(nowhere, &json!("Shutdown")), json!({"Err": "Question"}));
}

#[test]
fn a_device_program_without_its_parent_does_not_call_the_tpm() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);
    let ask = json!({"Keys": {"endorsement_key": null}});

    // The PID of a process that does not exist.
    let output = output(&json!({"asker": 0, "tcti": proxy.tcti(), "ask": ask}));

    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(proxy.exchanges().is_empty());
}

#[test]
fn a_tpm_error_contains_the_command_and_the_code() {
    let tpm = Arc::new(Swtpm::start());
    let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P256);
    let asked = question(&machine, &machine.ek_public(), &machine.ak_name());
    for (at, code, step) in [
        (command::CREATE_PRIMARY, 0x902, "TPM2_CreatePrimary"),
        (command::CREATE_PRIMARY, 0x9a2, "TPM2_CreatePrimary"),
        (command::CREATE_PRIMARY, 0x185, "TPM2_CreatePrimary"),
        (command::START_AUTH_SESSION, 0x903, "TPM2_StartAuthSession"),
        (command::POLICY_SECRET, 0x921, "TPM2_PolicySecret"),
        (
            command::ACTIVATE_CREDENTIAL,
            0x902,
            "TPM2_ActivateCredential",
        ),
        (command::QUOTE, 0x101, "TPM2_Quote"),
        (command::PCR_READ, 0x9ff, "TPM2_PCR_Read"),
        (command::FLUSH_CONTEXT, 0x9ff, "TPM2_FlushContext"),
    ] {
        let proxy = TpmProxy::before(&tpm);
        proxy.inject(Commands::One(at), Times::always(), Fault::Answer(code));

        let answer = ask(&proxy.tcti(), &asked);

        let expected = json!({"Err": {"Code": {"step": step, "code": code}}});
        assert_eq!(answer, expected);
        drop(proxy);
        if at == command::FLUSH_CONTEXT {
            tpm.flush();
        }
        assert_empty(&tpm);
    }
}

#[test]
fn a_disconnected_tpm_is_reported_as_unreachable() {
    let tpm = Arc::new(Swtpm::start());
    let proxy = TpmProxy::before(&tpm);
    let quote = Commands::One(command::CREATE_PRIMARY);
    proxy.inject(quote, Times::always(), Fault::Cut);

    let answer = ask(
        &proxy.tcti(),
        &json!({"Keys": {"endorsement_key": "EccP256"}}),
    );

    assert_eq!(code(&answer) & 0xff_0000, 0xa_0000, "{answer}");
}

#[test]
fn registers_that_change_during_a_read_are_read_again() {
    let tpm = Arc::new(Swtpm::start());
    let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P256);
    let asked = question(&machine, &machine.ek_public(), &machine.ak_name());

    let once = ask(&liar(&tpm, 1), &asked);
    let always = ask(&liar(&tpm, usize::MAX), &asked);

    let registers = once["Ok"]["pcrs"].as_object().unwrap();
    for (number, value) in registers {
        let value = data_encoding::HEXLOWER.decode(value.as_str().unwrap().as_bytes());
        assert_eq!(value.unwrap(), tpm.pcr(number.parse().unwrap()));
    }
    assert_eq!(always, json!({"Err": "Unsettled"}));
    assert_empty(&tpm);
}
