//! `kubelet-authenticator-aws`: for EC2 instances.
//!
//! The instance metadata service gives the instance its signed identity document and temporary
//! credentials of its own. The document says which instance this is; that this request comes from
//! there, and from nowhere else, is proved by a call of STS that is signed with the credentials and
//! covers the request's key. The call itself is made by the controller.
//!
//! Only a run that makes a new request asks the metadata service. Arguments, environment, streams
//! and exit statuses are those of [`kubelet_authenticator::cli::run`].

mod cms;
mod credentials;
mod identity;
mod instance;
mod name;
mod proof;
mod settings;
mod sigv4;

use std::process::ExitCode;

use kubelet_authenticator::cli;

/// musl's allocator asks the kernel for every page; a cached run ends before it would give any
/// back.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    cli::run(instance::Instance::default())
}
