//! The gRPC interface between the controller and a program that holds CA keys.
//!
//! `signer.proto` defines the interface, and `generated.rs` is generated from it. docs/signers.md describes the
//! contract.

#[rustfmt::skip]
mod generated;

pub use generated::*;

/// The version of the interface.
pub const VERSION: &str = "v1alpha1";
