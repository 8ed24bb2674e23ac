//! Verifies which AWS instance asks for a kubelet certificate.

pub mod credentials;
pub mod denial;
pub mod document;
pub mod ec2;
#[cfg(test)]
mod fake;
pub mod inventory;
pub mod partition;
pub mod policy;
pub mod proxy;
pub mod sts;
pub mod verifier;
