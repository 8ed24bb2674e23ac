//! Verifies which AWS instance requests a kubelet certificate.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `denial`: the reasons to deny an instance
//! - `error_codes`: the meaning of AWS error codes
//! - `partition`: AWS partitions: regions, and STS hosts
//! - `document`: the instance identity document and its signature
//! - `proxy`: the operator's proxy
//! - `credentials`: the credentials for EC2, and their health
//! - `policy`: the instance policy of a cluster
//! - `sts`: the STS call in the evidence
//! - `ec2`: EC2: batches, rate limits, the checks of an instance, its TPM
//! - `bounded`: objects of tenants, within the limits of each namespace
//! - `tenancy`: the AWS identity and the credentials of a workload cluster
//! - `inventory`: the machines of a cluster without Cluster API: instances with its tags
//! - `verifier`: the order of the checks

#![cfg_attr(
    test,
    expect(clippy::disallowed_types, reason = "no tenant shares a lock of a test")
)]

pub mod bounded;
pub mod credentials;
pub mod denial;
pub mod document;
pub mod ec2;
mod error_codes;
pub mod inventory;
pub mod partition;
pub mod policy;
pub mod proxy;
pub mod sts;
pub mod tenancy;
#[cfg(test)]
mod testing;
pub mod verifier;
