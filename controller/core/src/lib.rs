//! The decisions on kubelet certificate requests, and their inputs: without an API client, an async runtime or a clock.
//!
//! An infrastructure provider implements [`verifier::Verifier`] and [`inventory::Inventory`], and calls
//! [`decide::decide`]. The package `node-attestation-runtime` does this for clusters.
//!
//! # Guarantees
//!
//! - Only the chain of types in [`request`] creates a certificate. Each link of the chain represents one passed check.
//! - A denial means a contradiction. An outage never results in a denial.
//! - A certificate contains only the public key of the request. All other fields are built from verified data.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `time`: differences between wall-clock times, and times in messages
//! - `unshared`: locks that tenants do not share
//! - `pace`: pauses in loops over all objects of a cluster
//! - `identifiers`: identifiers of keys, node identities, certificates and bootstrap tokens, and names of nodes
//! - `lifetimes`: the maximum validity of certificates
//! - `rate_limit`: a token bucket that limits requesters, Events and EC2 calls
//! - `log_lines`: the log lines that the tenant of a cluster can cause
//! - `crd`: the custom resources
//! - `refusal`: the four outcomes other than a certificate (Ignore, Deny, Fail and Retry), and their reasons
//! - `inventory`: the trait that finds the machines of a cluster, and the type of a machine
//! - `signer`: the cluster's CA, and the encoding of certificates
//! - `scope`: whether attestation is enforced in a cluster
//! - `nodes`: the trait that reads and deletes Nodes
//! - `serving`: the names and addresses in serving certificates
//! - `verifier`: the trait that verifies evidence, and the provider `insecure`
//! - `ledger`: the node identities, called records: their rules, the sweep, and the trait that stores them
//! - `policy`: the checks, each of which is one function
//! - `request`: the chain of types through which a request passes
//! - `decide`: the decision on one request

#![cfg_attr(
    test,
    expect(clippy::disallowed_types, reason = "no tenant shares a lock of a test")
)]

pub mod crd;
pub mod decide;
pub mod identifiers;
pub mod inventory;
pub mod ledger;
pub mod lifetimes;
pub mod log_lines;
pub mod nodes;
pub mod pace;
mod policy;
pub mod rate_limit;
pub mod refusal;
pub mod request;
pub mod scope;
pub mod serving;
pub mod signer;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod unshared;
pub mod verifier;
