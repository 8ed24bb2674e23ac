//! The program under test, and its output.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use base64::prelude::*;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::EndorsementKey;
use serde_json::{Value, json};

/// The kinds of endorsement keys, as the programs encode them.
pub(crate) const KINDS: [(&str, EndorsementKey); 3] = [
    ("Rsa2048", EndorsementKey::Rsa2048),
    ("EccP256", EndorsementKey::P256),
    ("EccP384", EndorsementKey::P384),
];

/// Returns the program's response to this request.
#[track_caller]
pub(crate) fn ask(tcti: &str, ask: &Value) -> Value {
    let question = json!({"asker": std::process::id(), "tcti": tcti, "ask": ask});
    let output = output(&question);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The result of this request, which is sent to the program.
#[track_caller]
pub(crate) fn output(question: &Value) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubelet-authenticator-tpm-device"))
        .env_clear()
        .env("TSS2_LOG", "all+none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{question}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    output
}

pub(crate) fn keys_of(tpm: &Swtpm, kind: Option<&str>) -> Value {
    ask(&tpm.tcti(), &json!({"Keys": {"endorsement_key": kind}}))
}

/// The bytes that a field contains.
#[track_caller]
pub(crate) fn bytes(answer: &Value, field: &str) -> Vec<u8> {
    let text = answer[field].as_str();
    let text = text.unwrap_or_else(|| panic!("no {field} in {answer}"));
    BASE64_STANDARD.decode(text).unwrap()
}

/// Asserts that the TPM does not contain any objects or sessions.
#[track_caller]
pub(crate) fn assert_empty(tpm: &Swtpm) {
    assert_eq!(tpm.transient_handles(), Vec::<u32>::new());
    assert_eq!(tpm.loaded_sessions(), Vec::<u32>::new());
}
