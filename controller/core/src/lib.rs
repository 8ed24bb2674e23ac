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
//!
//! # Modules
//!
//! Each imports only those above it.
//!
//! - `identifiers`: digests of keys, UIDs of records and certificates, IDs of bootstrap tokens, names
//! - `lifetimes`: the longest validity of certificates
//! - `rate_limit`: the token bucket of requesters, Events and calls of EC2
//! - `crd`: the custom resources
//! - `refusal`: Ignore, Deny, Fail and Retry, and their reasons
//! - `inventory`: the trait that finds machines, and the machine
//! - `signer`: the cluster's CA, and the encoding of certificates
//! - `scope`: the requests that are ours
//! - `nodes`: the trait that reads and deletes Nodes
//! - `serving`: the names and addresses of serving certificates
//! - `verifier`: the trait that appraises evidence, and the provider `insecure`
//! - `ledger`: the records of the holders of node names: rules, sweep, and the trait that stores them
//! - `policy`: the checks, each a function
//! - `request`: the chain of types
//! - `decide`: one request through the chain

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
