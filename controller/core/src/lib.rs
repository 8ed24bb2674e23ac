//! The decisions about kubelet certificate requests, and what they rest on: without a client, a runtime or a
//! clock.
//!
//! An infrastructure provider brings a [`verifier::Verifier`] and an [`inventory::Inventory`], and calls
//! [`decide::decide`]. The package `node-attestation-runtime` does so for clusters.
//!
//! # Guarantees
//!
//! - A certificate comes only out of [`request`]'s chain of types, each link of which is one check
//!   that was passed.
//! - A denial is a contradiction; an outage never ends in one.
//! - Nothing in a request is copied into a certificate but the public key; the rest is built from
//!   what was verified.

pub mod crd;
pub mod decide;
pub mod identifiers;
pub mod inventory;
pub mod ledger;
pub mod lifetimes;
pub mod nodes;
mod policy;
pub mod rate_limit;
pub mod refusal;
pub mod request;
pub mod scope;
pub mod serving;
pub mod signer;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verifier;
