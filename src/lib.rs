//! Placeholder.

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
pub mod key;
pub mod kube;
pub mod kubelet;
pub mod log;
pub mod machine;
pub mod node_name;
pub mod origin;
pub mod pending;
pub mod rotation;
pub mod secret;
pub mod settings;
pub mod store;
pub mod stored;
