//! `kubelet-authenticator-tpm`: for machines with a TPM 2.0.
//!
//! The machine proves its identity with an endorsement key that only its TPM has. The first request contains that key
//! and an attestation key. The controller responds with a challenge that only this TPM can open, and only for that
//! attestation key. The second request contains a quote by the attestation key. The quote covers the request's key, the
//! secret of the challenge, and the boot measurements.
//!
//! This program does not access the TPM itself. It starts `kubelet-authenticator-tpm-device`, which needs the dynamic
//! library libtss2. A run that prints the stored credential uses neither the TPM helper nor libtss2. This program
//! searches for the helper in its own directory, and then in `/usr/lib/kubelet-authenticator`.
//!
//! For arguments, environment, streams and exit codes, see [`kubelet_authenticator::run`].
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `protocol`: the protocol between the plugin and the TPM helper
//! - `settings`: the settings of the TPM provider
//! - `certificate`: the certificates of an endorsement key and of its CAs, from the NV indices of a TPM
//! - `measurements`: the firmware's measurements, for `doctor`
//! - `device_check`: checks of the TPM's device file before the TPM is used
//! - `device_error`: errors of a TPM that does not work, with remedies
//! - `program`: finds and starts the TPM helper, and sends a request to it
//! - `device`: requests to this machine's TPM
//! - `instance`: the provider ID of a machine that is an EC2 instance
//! - `examine`: the checks of `doctor`, and the facts of `identify`
//! - `attester`: the attester of a machine with a TPM

mod attester;
mod certificate;
mod device;
mod device_check;
mod device_error;
mod examine;
mod instance;
mod measurements;
mod program;
mod protocol;
mod settings;

use std::process::ExitCode;

/// musl's allocator requests every page from the kernel. A run with the stored credential exits before it frees memory.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    kubelet_authenticator::run(attester::Tpm::default())
}
