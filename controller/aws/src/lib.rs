//! Verifies which AWS instance asks for a kubelet certificate.

pub use aws_sdk_ec2 as _;
pub mod caller;
pub mod document;
pub mod partition;
pub mod policy;
