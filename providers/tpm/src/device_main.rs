//! `kubelet-authenticator-tpm-device`: speaks to the TPM for `kubelet-authenticator-tpm`, which
//! starts it.
//!
//! It reads one line of JSON from standard input and writes one to standard output; the form is
//! between the two. It takes no arguments, writes nothing else, and ends with status 0 once it has
//! answered, be it with what troubles the TPM. It ends with the program that started it.
//!
//! The only part of the node that links libtss2, and so glibc; elsewhere it is an empty program.

#[cfg(target_env = "gnu")]
mod device;
#[cfg(target_env = "gnu")]
mod endorsement;
#[cfg(target_env = "gnu")]
mod protocol;
#[cfg(target_env = "gnu")]
mod question;

use std::process::ExitCode;

#[cfg(target_env = "gnu")]
fn main() -> ExitCode {
    match question::answer_one() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(not(target_env = "gnu"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
