//! The node half of kubelet authentication: an exec credential plugin that attests the machine it
//! runs on.
//!
//! A provider is a small program: it implements [`attester::Attester`] and passes it to
//! [`run`]. This library does the rest for every provider: it keeps the kubelet's client
//! certificate fresh. The module `authenticator` is the flow.
//!
//! # Guarantees
//!
//! - Standard output carries one `ExecCredential` or the output of a command. On failure it is
//!   empty.
//! - A run ends within its time limit, even if a dependency hangs. The exception is a file system
//!   that hangs under the settings or the state directory.
//!   `Authenticator::credential` documents the limit.
//! - If a run is killed at any step, the next run finishes it with the same request.
//! - The store never holds a certificate with the key of another. An issued certificate is checked
//!   before anything uses it.
//! - While the stored credential is not due for renewal, a run opens no connection and starts no
//!   thread or runtime. The exception is one short call an hour, which checks that the API server
//!   still accepts the certificate.
//! - After a panic on any thread, the process prints the stored credential if it is still valid. It
//!   writes no core file.
//! - Errors, log lines and `Debug` output contain no secrets.

#![cfg_attr(
    not(feature = "testing"),
    expect(
        unreachable_pub,
        reason = "what tests use is public with the feature alone"
    )
)]

pub mod attester;
mod authenticator;
mod backoff;
mod cli;
pub mod clock;
mod credential;
mod csr;
mod exec;
pub mod failure;
mod http;
pub mod imds;
mod key;
mod kube;
mod kubelet;
mod log;
mod machine;
mod node_name;
mod origin;
mod pending;
mod rescue;
mod rotation;
pub mod secret;
pub mod settings;
mod setup;
mod store;
mod store_contents;
#[cfg(feature = "testing")]
pub mod testing;

pub use cli::run;
