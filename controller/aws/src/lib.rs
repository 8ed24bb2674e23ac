//! Verifies which AWS instance requests a kubelet certificate.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `denial`: the reasons to deny an instance
//! - `error_codes`: the meaning of AWS error codes
//! - `partition`: AWS partitions: the partition and the STS host of a region
//! - `document`: the instance identity document and its signature
//! - `proxy`: connections to AWS, through the operator's proxy if one is configured
//! - `credentials`: the credentials for EC2 calls, and their health
//! - `policy`: a cluster's policy for instances
//! - `sts`: the STS call in the evidence
//! - `ec2`: EC2 calls with batches and rate limits, the checks of an instance, and its TPM
//! - `bounded`: objects of tenants, limited for each namespace
//! - `tenancy`: the AWS identity and the credentials of a workload cluster
//! - `inventory`: the machines of a cluster without Cluster API: the instances that have the cluster's tags
//! - `verifier`: the verifier of instances, and the order of its checks

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
