//! `kubelet-authenticator-tpm`: for machines with a TPM 2.0.
//!
//! The machine proves which it is by an endorsement key that only its TPM has. The first request
//! names it and an attestation key; the controller answers with a challenge that nothing but this
//! TPM can open, for that attestation key alone. The second request brings a quote by it, which
//! covers the request's key, what was in the challenge, and the boot measurements.
//!
//! This program speaks to no TPM. What does, `kubelet-authenticator-tpm-device`, needs libtss2, a
//! dynamic library, and is started when there is something to prove: a run that prints the stored
//! credential touches neither. It is looked for beside this program, and then in
//! `/usr/lib/kubelet-authenticator`.
//!
//! Arguments, environment, streams and exit statuses are those of
//! [`kubelet_authenticator::cli::run`].

mod attester;
mod certificate;
mod device_file;
mod instance;
mod program;
mod protocol;
mod settings;
mod trouble;

use std::process::ExitCode;

use kubelet_authenticator::cli;

/// musl's allocator asks the kernel for every page; a cached run ends before it would give any
/// back.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    cli::run(attester::Tpm::default())
}
