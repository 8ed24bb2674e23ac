//! `kubelet-authenticator-aws`: for EC2 instances.
//!
//! The instance metadata service provides the instance's signed identity document and temporary credentials. The
//! document identifies the instance. An STS call, signed with the credentials, proves that the request comes from the
//! instance, because the signature covers the request's key. The controller makes the call.
//!
//! A run that uses the stored credential does not call the metadata service. For arguments, environment, streams and
//! exit codes, see [`kubelet_authenticator::run`].
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `settings`: the settings of the AWS provider
//! - `sigv4`: AWS Signature Version 4
//! - `identity`: the identity of the instance, from its signed identity document
//! - `credentials`: the instance's temporary credentials
//! - `name`: the names that the instance's node can have
//! - `proof`: the signed STS call, which contains the key binding
//! - `session`: a session with the instance's metadata service, and the identity from its document
//! - `examine`: the checks of `doctor`, and the facts of `identify`
//! - `instance`: the attester of an EC2 instance

mod credentials;
mod examine;
mod identity;
mod instance;
mod name;
mod proof;
mod session;
mod settings;
mod sigv4;

use std::process::ExitCode;

/// musl's allocator requests every page from the kernel. A run with the stored credential exits before it frees memory.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    kubelet_authenticator::run(instance::Instance::default())
}
