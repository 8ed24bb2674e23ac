//! `kubelet-authenticator-tpm-device`: accesses the TPM for `kubelet-authenticator-tpm`, which starts it.
//!
//! It reads one line of JSON from standard input and writes one line to standard output, in a format that only these
//! two programs use. It does not accept arguments, and does not write other output. It exits with code 0 after an
//! answer, even if the answer is a TPM error. It exits when its parent process exits.
//!
//! On a node, only this program links libtss2, and therefore glibc. On targets without glibc, it is an empty program.

#[cfg(target_env = "gnu")]
mod endorsement;
#[cfg(target_env = "gnu")]
#[path = "../../protocol.rs"]
mod protocol;
#[cfg(target_env = "gnu")]
mod server;
#[cfg(target_env = "gnu")]
mod tpm;

use std::process::ExitCode;

#[cfg(target_env = "gnu")]
fn main() -> ExitCode {
    match server::answer_one() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(not(target_env = "gnu"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
