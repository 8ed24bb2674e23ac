//! The node half of kubelet authentication: an exec credential plugin that proves what machine it
//! runs on.
//!
//! A provider is a program of a few lines: it implements [`attester::Attester`] and hands it to
//! [`cli::run`]. What it takes to keep a kubelet's client certificate fresh is here, once for all
//! providers; [`authenticator`] is the flow.
//!
//! # Guarantees
//!
//! - Standard output carries one `ExecCredential` or the answer of a command, and is empty on
//!   failure.
//! - A run ends within its time, whatever hangs but the file systems of the settings and the state
//!   directory: [`authenticator::Authenticator::credential`] says which time.
//! - A run that is killed at any step is finished by the next, with the same request.
//! - The store never holds a certificate with a key that is not its own, and nobody sees a
//!   certificate that was not checked.
//! - While the stored credential is good there is no connection, no thread and no runtime, but for
//!   one short call an hour that learns whether it is still accepted.
//! - After a panic on any thread the stored credential is printed if it still holds, and no core
//!   file is written.
//! - No secret is in an error, a log line or a `Debug` text.

pub mod attester;
pub mod authenticator;
pub mod backoff;
pub mod cli;
pub mod clock;
pub mod credential;
pub mod csr;
pub mod enrolment;
pub mod exec;
pub mod failure;
pub mod imds;
pub mod key;
pub mod kube;
pub mod kubelet;
pub mod log;
pub mod machine;
pub mod node_name;
pub mod origin;
pub mod pending;
pub mod rescue;
pub mod rotation;
pub mod secret;
pub mod settings;
pub mod setup;
pub mod store;
pub mod store_contents;
