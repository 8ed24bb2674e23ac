//! Finds and starts the program that accesses the TPM, and sends it a request.

use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_authenticator::clock::Deadline;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::ownership::{self, Untrusted};

use serde::de::DeserializeOwned;

use crate::device_error::{self, PACKAGES, SAME_VERSION};
use crate::protocol::{DeviceError, MAX_LINE_LEN, Question};

const NAME: &str = "kubelet-authenticator-tpm-device";

/// The prefix of a device's name in libtss2.
pub(crate) const DEVICE: &str = "device:";

/// The directory into which packages install the TPM helper.
const FOLDER: &str = "/usr/lib/kubelet-authenticator";

/// The maximum number of bytes that are read from standard error. A message of the dynamic loader is much shorter.
const MAX_WORDS_LEN: u64 = 4 * 1024;

/// The exit code of glibc's dynamic loader, if it cannot load a program.
const NOT_LOADED: i32 = 127;

/// The interval at which a program that has answered is polled for its exit.
const ENDING: Duration = Duration::from_millis(1);

/// Returns the failure for a TPM helper that does not respond.
fn unanswered(what: String, remedy: &str) -> Failure {
    Failure::new(Code::DeviceUnavailable, what, remedy).within("cannot use the TPM")
}

/// Returns the path of the TPM helper: in the directory of this program, or otherwise in the directory into which packages
/// install the helper.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe().map(|this| this.with_file_name(NAME));
    let packaged = Path::new(FOLDER).join(NAME);
    let looked: Vec<_> = beside.into_iter().chain([packaged]).collect();
    first(&looked)
}

/// Returns the first of these paths that exists.
fn first(looked: &[PathBuf]) -> Result<PathBuf, Failure> {
    let found = looked.iter().find(|path| path.exists()).cloned();
    found.ok_or_else(|| {
        let looked: Vec<_> = looked.iter().map(|path| path.to_string_lossy()).collect();
        unanswered(
            format!(
                "the TPM helper is not installed: {NAME} is not {}",
                looked.join(", nor ")
            ),
            "install the package kubelet-authenticator-tpm-device",
        )
    })
}

/// Starts the program and sends it a request.
pub(crate) fn ask<T: DeserializeOwned>(
    program: &Path,
    question: &Question,
    deadline: Deadline,
) -> Result<T, Failure> {
    answer(program, question, deadline)?.map_err(|error| {
        if error == DeviceError::Question {
            let place = program.display();
            return unanswered(
                format!("{place} and this plugin are from different releases"),
                SAME_VERSION,
            );
        }
        failure(question, &error)
    })
}

/// The failure if the TPM answered `question` with `error`.
pub(crate) fn failure(question: &Question, error: &DeviceError) -> Failure {
    let tpm = question.tcti.strip_prefix(DEVICE);
    device_error::failure(tpm.unwrap_or(&question.tcti), error)
}

/// Returns the program's answer to a request. An answer that the plugin cannot read counts as
/// [`DeviceError::Question`].
///
/// This function returns at the deadline, even if the program hangs, because libtss2 waits for a TPM indefinitely. It
/// kills the program, but does not wait until the program exits: a process that has sent a command exits only after the
/// TPM has answered the kernel.
pub(crate) fn answer<T: DeserializeOwned>(
    program: &Path,
    question: &Question,
    deadline: Deadline,
) -> Result<Result<T, DeviceError>, Failure> {
    let given = deadline.remaining();
    let mut child = start(program)?;
    if let Some(mut input) = child.stdin.take() {
        let line = serde_json::to_string(question).unwrap_or_default() + "\n";
        // If the dynamic loader fails, it closes the pipe. The exit status of the program is more precise than the
        // write error.
        drop(input.write_all(line.as_bytes()));
    }
    let slow = || {
        unanswered(
            format!("the TPM did not respond within {given:.1?}"),
            "the next run retries; for a slow TPM, use a stored or elliptic-curve endorsement \
             key (tpm.endorsementKey); remove sessions of other programs with `tpm2_flushcontext \
             -s`; reboot if the TPM does not respond",
        )
    };
    let heard = hear(&mut child, deadline).map_err(|error| {
        unanswered(
            format!("cannot start a thread for the TPM helper: {error}"),
            "raise the process limit of the plugin's cgroup (pids.max) or user",
        )
    });
    let Ok(Some((said, complained))) = heard else {
        drop(child.kill());
        return Err(heard.err().unwrap_or_else(slow));
    };
    let Some(status) = end(&mut child, deadline) else {
        drop(child.kill());
        return Err(slow());
    };
    ensure!(status.success(), ended(program, status, complained.trim()));
    Ok(serde_json::from_str(&said).unwrap_or(Err(DeviceError::Question)))
}

fn start(program: &Path) -> Result<Child, Failure> {
    if let Some(Untrusted { what, remedy }) = ownership::of_path(program) {
        return Err(unanswered(what, &remedy));
    }
    let started = Command::new(program)
        .env_clear()
        // libtss2 logs every error to standard error. Only messages of the dynamic loader are useful on standard error.
        .env("TSS2_LOG", "all+none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    started.map_err(|error| {
        let place = program.display();
        // The program exists, so the missing file is its dynamic loader.
        if error.kind() == io::ErrorKind::NotFound && program.exists() {
            unanswered(
                format!("cannot start {place}: this system has no glibc to load it"),
                "use a system with glibc; the musl loader (Alpine) cannot load libtss2",
            )
        } else if error.kind() == io::ErrorKind::PermissionDenied {
            unanswered(
                format!("cannot start {place}: {error}"),
                &format!(
                    "run: chmod 755 {place}; on a system with SELinux, run: restorecon -v {place}"
                ),
            )
        } else {
            unanswered(
                format!("cannot start {place}: {error}"),
                "check that the program is built for this processor",
            )
        }
    })
}

/// Reads the standard output and the standard error of the program until the program has closed both. `None` at
/// the deadline.
fn hear(child: &mut Child, deadline: Deadline) -> io::Result<Option<(String, String)>> {
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Ok(None);
    };
    let said = text(out, MAX_LINE_LEN)?;
    let complained = text(err, MAX_WORDS_LEN)?;
    let heard = || {
        let said = said.recv_timeout(deadline.remaining()).ok()?;
        let complained = complained.recv_timeout(deadline.remaining()).ok()?;
        Some((said, complained))
    };
    Ok(heard())
}

/// Reads a stream to its end, and returns its first `limit` bytes.
///
/// A separate thread reads the stream to its end, because a program blocks if its output is not read.
fn text(mut from: impl Read + Send + 'static, limit: u64) -> io::Result<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // After a read error, return the bytes that were read before the error.
        drop(from.by_ref().take(limit).read_to_end(&mut bytes));
        drop(io::copy(&mut from, &mut io::sink()));
        drop(sender.send(String::from_utf8_lossy(&bytes).into_owned()));
    })?;
    Ok(receiver)
}

fn end(child: &mut Child, deadline: Deadline) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if !deadline.passed() => thread::sleep(ENDING),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Returns the error for a program that failed. `words` is the message of the program or of the dynamic loader.
fn ended(program: &Path, status: ExitStatus, words: &str) -> Failure {
    let place = program.display();
    if status.code() == Some(NOT_LOADED) {
        let library = words
            .split_once("shared libraries: ")
            .and_then(|(_, rest)| rest.split_once(':'));
        if let Some((library, _)) = library {
            let what = "for TPMs is missing or damaged";
            return unanswered(format!("the library {library} {what}"), PACKAGES);
        }
        if words.contains("symbol lookup error") || words.contains("version `") {
            let what = "the TPM libraries do not match the libraries that";
            return unanswered(format!("{what} {place} was built for: {words}"), PACKAGES);
        }
    }
    let colon = if words.is_empty() { "" } else { ": " };
    unanswered(
        format!("{place} exited without an answer ({status}){colon}{words}"),
        "check the system's log for the reason",
    )
}

#[cfg(test)]
mod tests;
