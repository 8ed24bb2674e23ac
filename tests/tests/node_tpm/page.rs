//! Tests of the commands in docs/tpm-pcrs.md.

use std::process::Command;

use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_tests::page::commands;
use sha2::{Digest as _, Sha256};

use crate::join::hex;

#[test]
fn the_documented_command_computes_the_value_after_the_separator() {
    let tpm = Swtpm::start();
    tpm.extend(11, &[0x5a; 32]);
    let before = hex(&tpm.pcr(11));
    tpm.extend(11, &Sha256::digest("os-separator").into());
    let mut commands = commands("tpm-pcrs.md", '$').into_iter();
    let command = commands.find(|it| it.contains("os-separator")).unwrap();

    let output = Command::new("sh")
        .args(["-euc", &command])
        .env("value", &before)
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let value = printed.split_whitespace().last().unwrap();
    assert_eq!(value, hex(&tpm.pcr(11)), "{printed}");
}
