//! Verifies which AWS instance asks for a kubelet certificate.

pub mod credentials;
pub mod denial;
pub mod document;
pub mod ec2;
pub mod inventory;
pub mod partition;
pub mod policy;
pub mod proxy;
pub mod sts;
#[cfg(test)]
mod testing;
pub mod verifier;
