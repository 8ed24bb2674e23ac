//! Hardening the join: on a workload cluster, every way to a kubelet's certificate that goes round
//! attestation is closed, and shown closed.
//!
//! | part | what it does |
//! | --- | --- |
//! | [`bindings`] | finds who has kubelets approved unseen, and removes kubeadm's two bindings |
//! | [`auto_approve_audit`] | proves that nobody has, or names who |
//! | [`admission`] | confines what tokens and nodes may ask for |
//! | [`revocation`] | refuses revoked certificates every write |
//! | [`workload_identity`] | tells a cluster from another one that had its name |
//! | [`tokens`] | keeps bootstrap tokens alive while they are wanted |
//! | [`service_ranges`] | reads the addresses of Services, which no node has |
//! | [`rate_limit`] | bounds the work that one requester can cause; it has no I/O |
//!
//! # Guarantees
//!
//! - Every part can be repeated, and writes nothing where all is as it should be.
//! - No part reaches a decision about a node: what fails is an outage or a missing right.
//! - A part that fails stops no other.
//! - All of it works with the rights of `packaging/rbac/workload-cluster.yaml`.

mod access;
pub mod admission;
pub mod auto_approve_audit;
pub mod bindings;
mod policies;
pub mod rate_limit;
pub mod revocation;
pub mod service_ranges;
pub mod tokens;
pub mod workload_identity;

pub use access::HardeningError;
