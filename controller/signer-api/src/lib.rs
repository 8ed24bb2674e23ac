//! The gRPC interface between the controller and a program that holds the keys of CAs.
//!
//! `signer.proto` is the interface, and `generated.rs` is made from it. docs/signers.md has the contract.

#[rustfmt::skip]
mod generated;

pub use generated::*;

/// The version of the interface.
pub const VERSION: &str = "v1alpha1";
