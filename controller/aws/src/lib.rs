//! Verifies which AWS instance asks for a kubelet certificate.

pub mod caller;
pub mod credentials;
pub mod document;
#[cfg(test)]
mod fake;
pub mod instance;
pub mod inventory;
pub mod partition;
pub mod policy;
pub mod proxy;
pub mod verifier;
