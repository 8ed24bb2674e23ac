use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use super::*;
use crate::protocol::{self, Ask, Bytes, Findings, Keys, Quoted};

const MINUTE: Duration = Duration::from_mins(1);

/// The kernel does not execute a file that is open for writing. A process that another test starts inherits the open
/// files, and keeps them open until the process executes its program. Therefore, only one test at a time writes a
/// program.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A program that consists of this script, and the lock for the program.
fn script(text: &str) -> (Script, PathBuf) {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    ((turn, folder), program)
}

type Script = (MutexGuard<'static, ()>, TempDir);

/// Sends a request to the program. The program answers with a number.
fn asked(program: &Path, time: Duration) -> Result<u8, Failure> {
    asked_for(program, time)
}

fn asked_for<T: DeserializeOwned>(program: &Path, time: Duration) -> Result<T, Failure> {
    let question = Question {
        asker: std::process::id(),
        tcti: "device:/dev/tpmrm0".to_owned(),
        ask: Ask::Keys {
            endorsement_key: None,
        },
    };
    ask(program, &question, Deadline::after(time))
}

fn refused(text: &str) -> String {
    let (_folder, program) = script(text);
    let error = asked(&program, MINUTE).unwrap_err();
    let said = error.what().replace(program.to_str().unwrap(), "PROGRAM");
    let said = said.strip_prefix("cannot use the TPM: ").unwrap();
    said.to_owned()
}

#[test]
fn the_response_of_the_helper_is_one_line_of_json() {
    let (folder, program) = script("#!/bin/sh\nread question\necho '{\"Ok\":7}'\n");
    assert_eq!(asked(&program, MINUTE), Ok(7));
    drop(folder);

    let (_folder, program) = script("#!/bin/sh\necho '{\"Err\":\"FailureMode\"}'\n");
    let error = asked(&program, MINUTE).unwrap_err();
    let words = "the TPM (/dev/tpmrm0) is in failure mode";
    assert!(error.what().starts_with(words), "{error}");
}

#[test]
fn the_helper_gets_the_command_without_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let (_script, program) = script(&format!(
        "#!/bin/sh\n{{ cat; env; }} > {}\necho '{{\"Ok\":7}}'\n",
        kept.display()
    ));

    asked(&program, MINUTE).unwrap();

    let kept = fs::read_to_string(kept).unwrap();
    assert!(kept.contains(",\"tcti\":\"device:/dev/tpmrm0\""), "{kept}");
    assert!(kept.contains("TSS2_LOG=all+none"));
    assert!(!kept.contains("CARGO"), "{kept}");
}

#[test]
fn a_dynamic_loader_error_is_explained_to_the_operator() {
    for (words, expected) in [
        (
            "PROG: error while loading shared libraries: libtss2-esys.so.0: cannot open shared \
             object file: No such file or directory",
            "the library libtss2-esys.so.0 for TPMs is missing or damaged",
        ),
        (
            "PROG: symbol lookup error: PROG: undefined symbol: Esys_Free",
            "the TPM libraries do not match the libraries that PROGRAM was built for: PROG: \
             symbol lookup error: PROG: undefined symbol: Esys_Free",
        ),
        (
            "PROG: /lib/libc.so.6: version `GLIBC_2.38' not found (required by PROG)",
            "the TPM libraries do not match the libraries that PROGRAM was built for: PROG: \
             /lib/libc.so.6: version `GLIBC_2.38' not found (required by PROG)",
        ),
    ] {
        let said = refused(&format!("#!/bin/sh\ncat <<'E' >&2\n{words}\nE\nexit 127\n"));
        assert_eq!(said, expected);
    }
}

#[test]
fn a_helper_without_a_response_is_reported_with_its_exit_status() {
    assert_eq!(
        refused("#!/bin/sh\necho why >&2\nexit 3\n"),
        "PROGRAM exited without an answer (exit status: 3): why"
    );
    assert_eq!(
        refused("#!/bin/sh\nkill -9 $$\n"),
        "PROGRAM exited without an answer (signal: 9 (SIGKILL))"
    );
    assert_eq!(
        refused("#!/bin/sh\necho hello\n"),
        "PROGRAM and this plugin are from different releases"
    );
}

/// A TPM helper that responds with this line.
fn answering(line: &str) -> (Script, PathBuf) {
    script(&format!("#!/bin/sh\nread question\necho '{line}'\n"))
}

#[test]
fn a_helper_of_the_first_version_supports_a_join() {
    for line in protocol::tests::KEYS {
        let (_folder, program) = answering(line);
        let keys: Keys = asked_for(&program, MINUTE).unwrap();
        assert_eq!(keys.endorsement, Bytes(vec![1]));
        assert_eq!(keys.certificate.is_some(), !keys.chain.0.is_empty());
    }
    let (_folder, program) = answering(protocol::tests::QUOTED);
    let quoted: Quoted = asked_for(&program, MINUTE).unwrap();
    assert_eq!(quoted.pcrs.get(7), Some(&[2; 32]));
}

#[test]
fn the_error_for_an_unsupported_command_names_the_helpers_package() {
    for line in [
        // The first version of the TPM helper does not support the requests from `doctor`.
        r#"{"Err":"Question"}"#,
        // A later version defines this error.
        r#"{"Err":"Later"}"#,
        r#"{"Err":{"Later":{"step":"TPM2_Quote"}}}"#,
        // A field is missing.
        r#"{"Ok":{"firmware":null}}"#,
    ] {
        let (_folder, program) = answering(line);
        let error = asked_for::<Findings>(&program, MINUTE).unwrap_err();

        let what = format!(
            "cannot use the TPM: {} and this plugin are from different releases",
            program.display()
        );
        assert_eq!(error.what(), what, "{line}");
        assert_eq!(error.code(), Code::DeviceUnavailable);
        let remedy =
            "update the package kubelet-authenticator-tpm-device to the version of this plugin, ";
        assert!(error.remedy().starts_with(remedy), "{}", error.remedy());
        let version = env!("CARGO_PKG_VERSION");
        assert!(error.remedy().contains(version), "{}", error.remedy());
    }
}

#[test]
fn the_large_output_of_a_helper_is_read_completely() {
    let much = "head -c 200000 /dev/zero | tr '\\0' x";
    let (folder, program) = script(&format!("#!/bin/sh\n{much} >&2\necho '{{\"Ok\":7}}'\n"));
    assert_eq!(asked(&program, MINUTE), Ok(7));
    drop(folder);

    assert_eq!(
        refused(&format!("#!/bin/sh\n{much}\n")),
        "PROGRAM and this plugin are from different releases"
    );
    let said = refused(&format!("#!/bin/sh\n{much} >&2\nexit 3\n"));
    let words = format!(
        "PROGRAM exited without an answer (exit status: 3): {}",
        "x".repeat(3000)
    );
    assert!(said.starts_with(&words) && said.len() < 4096, "{said}");
}

#[test]
fn a_helper_that_hangs_times_out() {
    let (_folder, program) = script("#!/bin/sh\nexec sleep 1000\n");

    let error = asked(&program, Duration::from_millis(50)).unwrap_err();

    assert!(error.what().contains("did not respond within"), "{error}");
    assert!(error.remedy().contains("`tpm2_flushcontext -s`"), "{error}");
}

#[test]
fn the_error_for_a_helper_that_does_not_start_has_the_cause() {
    assert_eq!(
        refused("#!/nowhere/loader\n"),
        "cannot start PROGRAM: this system has no glibc to load it"
    );
    let (_folder, program) = script("#!/bin/sh\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    let error = asked(&program, MINUTE).unwrap_err();
    assert!(
        error
            .what()
            .starts_with("cannot use the TPM: cannot start "),
        "{error}"
    );
    let place = program.display();
    let remedy = error.remedy();
    assert!(
        remedy.starts_with(&format!("run: chmod 755 {place}")),
        "{remedy}"
    );
    assert!(
        remedy.ends_with(&format!("restorecon -v {place}")),
        "{remedy}"
    );
}

#[test]
fn the_first_existing_program_path_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let [program, packaged] = ["program", "packaged"].map(|name| folder.path().join(name));
    for there in [&program, &packaged] {
        fs::write(there, "").unwrap();
    }
    let missing = program.with_extension("none");

    let both = [program.clone(), packaged];
    assert_eq!(first(&both).unwrap(), program);
    assert_eq!(first(&[missing.clone(), program.clone()]).unwrap(), program);
    let error = first(&[missing.clone(), missing]).unwrap_err();
    assert!(error.what().ends_with("program.none"), "{error}");
}

#[test]
fn a_helper_that_another_user_can_change_is_not_started() {
    assert!(
        rustix::process::geteuid().is_root(),
        "only helpers that root starts are checked: run this test as root"
    );
    let kept = tempfile::tempdir().unwrap();
    let started = kept.path().join("started");
    let (_script, program) = script(&format!(
        "#!/bin/sh\n: > {}\necho '{{\"Ok\":7}}'\n",
        started.display()
    ));
    let folder = program.parent().unwrap();
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for path in [folder, program.as_path()] {
        set_mode(path, 0o777);

        let error = asked(&program, MINUTE).unwrap_err();

        let path = path.display();
        let what = format!("cannot use the TPM: {path} has mode 0777, so other users can write it");
        assert_eq!(error.what(), what);
        let remedy = format!("check its content for changes, then run: chmod go-w {path}");
        assert_eq!(error.remedy(), remedy);
        assert_eq!(error.code().number(), 6);
        assert!(!started.exists(), "{path}");
        set_mode(folder, 0o755);
        set_mode(&program, 0o755);
    }

    assert_eq!(asked(&program, MINUTE), Ok(7));
    assert!(started.exists());
}
