//! The node half of kubelet authentication: an exec credential plugin that attests the machine on which it runs.
//!
//! A provider is a small program: it implements [`attester::Attester`] and passes it to [`run`]. This library does
//! everything else to keep the kubelet's client certificate valid. The module `authenticator` contains the main flow.
//!
//! # Guarantees
//!
//! - Standard output carries one `ExecCredential` or the output of a command. On failure it is
//!   empty.
//! - A run ends within its time limit, even if a dependency hangs. The only exception: the file system with the
//!   settings or the state directory does not respond. `Authenticator::credential` documents the limit.
//! - If a run is killed at any step, the next run completes it with the same request.
//! - In the store, the certificate and the key always match. An issued certificate is checked before it is used.
//! - While the stored credential is not due for renewal, a run does not open connections or start threads. The
//!   exception is one short call per hour, which checks that the API server still accepts the certificate.
//! - After a panic on any thread, the process prints the stored credential if it is still valid. It does not write a
//!   core file.
//! - Errors, log lines and `Debug` output contain no secrets.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `secret`: secret values
//! - `clock`: the wall clock and deadlines
//! - `failure`: the failure of a run: exit code, text and remedy
//! - `ownership`: checks that only root can change certain files and programs
//! - `file_size`: the limit on file sizes (`RLIMIT_FSIZE`)
//! - `finding`: the findings of `doctor`, one for each check
//! - `sheet`: facts about an object, printed as a table or as JSON
//! - `log`: the log on standard error
//! - `process`: the name of this program, and functions that run other programs and return their output
//! - `reasons`: explanations of the controller's reasons, without a network
//! - `redact`: removes secrets from texts that leave this machine
//! - `bundle`: the archive that `support-bundle` writes
//! - `http`: HTTP clients with deadlines and limited responses
//! - `key`: the private key of a credential
//! - `machine`: the identity of this machine and of its boot
//! - `kubelet`: the kubelet's arguments
//! - `node_name`: the name of this node
//! - `exec`: the exec credential API of client-go
//! - `settings`: the table of settings, their sources and precedence
//! - `imds`: the EC2 instance metadata service
//! - `attester`: the trait that a provider implements
//! - `csr`: the certificate signing request
//! - `rotation`: the decision to keep, renew or replace a credential
//! - `store`: the state directory: its lock and permissions, and the atomic replacement of files
//! - `backoff`: the pause after a failure
//! - `kube`: the API operations that a node needs
//! - `leftovers`: settings from earlier versions, in sources that the plugin ignores
//! - `origin`: the machine, node and cluster of the stored credential
//! - `pending`: the pending request, which is saved before it is sent
//! - `credential`: a client certificate with its key, and the checks of an issued certificate
//! - `store_contents`: the contents of the state directory, checked before use
//! - `inspect`: requests, evidence and the store, decoded for operators
//! - `metrics`: metrics of the node for the textfile collector of `node_exporter`
//! - `rescue`: ends the process after a panic, and prints the stored credential if it is valid
//! - `authenticator`: the main flow of a run: returns the stored credential, or gets a new credential before a deadline
//! - `setup`: configures the kubelet to run the plugin, and reverts this configuration
//! - `doctor`: the checks for a node that does not join
//! - `cli`: commands, arguments and their output

#![cfg_attr(
    not(feature = "testing"),
    expect(
        unreachable_pub,
        unnameable_types,
        reason = "items for tests are public only with the feature"
    )
)]

pub mod attester;
mod authenticator;
mod backoff;
mod bundle;
mod cli;
pub mod clock;
mod credential;
mod csr;
mod doctor;
mod exec;
pub mod failure;
mod file_size;
mod finding;
mod http;
pub mod imds;
mod inspect;
mod key;
mod kube;
mod kubelet;
mod leftovers;
mod log;
mod machine;
mod metrics;
mod node_name;
mod origin;
pub mod ownership;
mod pending;
pub mod process;
mod reasons;
mod redact;
mod rescue;
mod rotation;
pub mod secret;
pub mod settings;
mod setup;
mod sheet;
mod store;
mod store_contents;
#[cfg(feature = "testing")]
pub mod testing;

pub use cli::run;
