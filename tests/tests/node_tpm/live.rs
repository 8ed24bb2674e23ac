//! Tests of the script for a first run on a machine with a TPM, using swtpm.

use std::process::{Command, Output};
use std::sync::Arc;

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::event_log::events;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use kubelet_authenticator_tests::page::repository;
use kubelet_authenticator_tests::program;

/// An event log that does not exist. The host can have a TPM with another event log.
const NO_LOG: &str = "/nonexistent/event-log";

/// Runs the script with the TPM at this address.
fn run(tcti: &str, files: &Scratch, name: &str, additions: &[&str]) -> (Output, String) {
    let report = files.join(name);
    let output = Command::new("python3")
        .arg(repository().join("tests/live/tpm"))
        .arg("--plugin")
        .arg(program("kubelet-authenticator-tpm"))
        .args(["--tcti", tcti, "--repeat", "3", "--rounds", "3"])
        .args(["--event-log", NO_LOG])
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
        "| 1 | the TPM has a SHA-256 or SHA-384 bank | ok | sha256 |",
        "| 1 | AES-256 | noted | yes |",
        "| 1 | the firmware measures registers 0 to 7 | ok |",
        "| 2 | the plugin reads an endorsement key | ok |",
        "| 2 | the key from the template equals the certificate, EccP384 | ok |",
        "| 2 | the key from the template equals the certificate, EccP256 | not checked | the TPM has no certificate",
        "| 2 | the key from the template equals the certificate, Rsa2048 | ok |",
        "| 2 | persistent handles with the key from the template, EccP384 | noted | 0x81010016 |",
        "| 2 | persistent handles with the key from the template, EccP256 | noted | none |",
        "| 2 | persistent handles with the key from the template, Rsa2048 | noted | 0x81010001 |",
        "| 3 | challenges and quotes, EccP384 | ok | 3 of 3 rounds",
        "| 3 | challenges and quotes, EccP256 | ok | 3 of 3 rounds",
        "| 3 | challenges and quotes, Rsa2048 | ok | 1 of 1 rounds",
        "| 4 | the 99th percentile of opening a challenge with a quote is below 5 s, EccP384 | ok |",
        "| 4 | the 99th percentile of reading the key is below 5 s | ok |",
        "| 5 | the signer in each quote is the attestation key | ok |",
        "| 5 | the selection in a quote has three bytes | ok | 3 |",
        "| 5 | the clock and counters in a quote equal TPM2_ReadClock | ok |",
        "| 5 | the firmware in a quote equals TPM2_GetCapability | ok |",
        "| 6 | handles, sessions and lockout are unchanged | ok |",
        "| 6 | handles, sessions and lockout after killed runs | not checked | by hand",
        "| 9 | three plugins at once read the key | ok |",
        "| 7 | the counter of resets rises | not checked |",
        "| 7 | the counters after a power failure, and after sleep | not checked | by hand",
        "| 8 | the event log explains registers 0 to 7 | not checked | /nonexistent/event-log",
        "| 8 | registers 10 minutes after a boot, and after a soft reboot | not checked | by hand",
        "| 9 | other programs, leaked sessions and IMA at the same time | not checked | by hand",
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
fn the_live_check_of_a_tpm_replays_its_event_log() {
    let log = repository().join("tests/boots/recorded/uki-secure-boot/event-log");
    let (booted, other) = (Swtpm::unmeasured(), Swtpm::start());
    for event in events(&std::fs::read(&log).unwrap()) {
        booted.extend(event.register, &event.sha256);
    }
    let log = log.display().to_string();

    for (tpm, result) in [
        (booted, "ok |  |"),
        (other, "FAILED | different: [0, 1, 4, 5, 7] |"),
    ] {
        let files = Scratch::new("live-tpm-log");
        let (output, report) = run(&tpm.tcti(), &files, "report.md", &["--event-log", &log]);
        assert_eq!(
            output.status.success(),
            result.starts_with("ok"),
            "{output:?}\n{report}"
        );
        let row = format!("| 8 | the event log explains registers 0 to 7 | {result}");
        assert!(report.contains(&row), "{row}\n{report}");
    }
}

#[test]
fn the_live_check_of_a_tpm_finds_a_certificate_for_another_key() {
    let tpm = Arc::new(Swtpm::start());
    let other = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P384);
    tpm.write_certificate(0x01c0_0016, &other.ek_certificate().unwrap());
    let files = Scratch::new("live-tpm-certificate");

    let (output, report) = run(&tpm.tcti(), &files, "report.md", &[]);

    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let row = "| 2 | the key from the template equals the certificate, EccP384 | FAILED |";
    assert!(report.contains(row), "{row}\n{report}");
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
