//! Tests of the script for a first run on a machine with a TPM, using swtpm.

use std::process::{Command, Output};

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use kubelet_authenticator_tests::page::repository;
use kubelet_authenticator_tests::program;

/// Runs the script with the TPM at this address.
fn run(tcti: &str, files: &Scratch, name: &str, additions: &[&str]) -> (Output, String) {
    let report = files.join(name);
    let output = Command::new("python3")
        .arg(repository().join("tests/live/tpm"))
        .arg("--plugin")
        .arg(program("kubelet-authenticator-tpm"))
        .args(["--tcti", tcti, "--repeat", "3", "--rounds", "3"])
        .arg("--report")
        .arg(&report)
        .args(additions)
        .output()
        .unwrap();
    let report =
        std::fs::read_to_string(report).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, report)
}

#[test]
fn the_live_check_of_a_tpm_passes_and_leaves_the_tpm_unchanged() {
    let tpm = Swtpm::start();
    let files = Scratch::new("live-tpm");

    let (output, report) = run(&tpm.tcti(), &files, "first.md", &[]);

    assert!(output.status.success(), "{output:?}\n{report}");
    for row in [
        "| 1 | the firmware measures registers 0 to 7 | ok |",
        "| 2 | the plugin reads an endorsement key | ok |",
        "| 3 | challenges and quotes, EccP384 | ok | 3 of 3 rounds",
        "| 3 | challenges and quotes, EccP256 | ok | 3 of 3 rounds",
        "| 3 | challenges and quotes, Rsa2048 | ok | 1 of 1 rounds",
        "| 5 | the signer in each quote is the attestation key | ok |",
        "| 5 | the selection in a quote has three bytes | ok | 3 |",
        "| 5 | the clock and counters in a quote equal TPM2_ReadClock | ok |",
        "| 5 | the firmware in a quote equals TPM2_GetCapability | ok |",
        "| 6 | handles, sessions and lockout are unchanged | ok |",
        "| 9 | three plugins at once read the key | ok |",
        "| 7 | the counter of resets rises | not checked |",
        "| 10 | endorsement password, hierarchies, lockout | not checked | by hand",
    ] {
        assert!(report.contains(row), "{row}\n{report}");
    }

    // The TPM has not been reset, so the comparison with the first run fails.
    let before = files.join("first.json").display().to_string();
    let (output, report) = run(&tpm.tcti(), &files, "second.md", &["--before", &before]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for row in [
        "| 2 | the identity is the same as before | ok |",
        "| 7 | the counter of resets rises | FAILED |",
        "| 8 | registers that changed since the earlier boot | noted | none |",
    ] {
        assert!(report.contains(row), "{row}\n{report}");
    }
}

#[test]
fn the_live_check_of_a_tpm_finds_firmware_that_does_not_measure() {
    let tpm = Swtpm::unmeasured();
    let files = Scratch::new("live-tpm-unmeasured");

    let (output, report) = run(&tpm.tcti(), &files, "report.md", &[]);

    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let row =
        "| 1 | the firmware measures registers 0 to 7 | FAILED | zero: [0, 1, 2, 3, 4, 5, 6, 7] |";
    assert!(report.contains(row), "{report}");
}

#[test]
fn the_live_check_of_a_tpm_without_quotes_fails() {
    let tpm = Swtpm::start();
    let proxy = TpmProxy::before(&tpm);
    // TPM_RC_OBJECT_MEMORY: all slots are taken.
    let fault = Fault::Answer(0x902);
    proxy.inject(Commands::One(command::QUOTE), Times::always(), fault);
    let files = Scratch::new("live-tpm-quote");

    let (output, report) = run(&proxy.tcti(), &files, "report.md", &[]);

    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for row in [
        "| 3 | challenges and quotes, EccP384 | FAILED | 0 of 3 rounds",
        "round 1 (x begins with zero): ",
        "| 5 | clock, firmware and signer in a quote | not checked | no quote verifies |",
    ] {
        assert!(report.contains(row), "{row}\n{report}");
    }
}
