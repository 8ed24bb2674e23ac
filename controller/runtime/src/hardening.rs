//! Hardening of the join: closes every path to a kubelet certificate in a workload cluster that bypasses attestation,
//! and verifies that all paths are closed.
//!
//! | Part | Task |
//! | --- | --- |
//! | [`bindings`] | finds bindings that approve kubelet CSRs without evidence, and removes the two that kubeadm creates |
//! | [`auto_approve_audit`] | verifies that no such path is open, or lists the open paths |
//! | [`other_approvers`] | finds other approvers of requests for serving certificates |
//! | [`exempt_overlaps`] | finds exempt Nodes whose name has two valid certificates |
//! | [`admission`] | restricts the requests that tokens and nodes can create |
//! | [`floor`] | the policies of a management cluster that set minimum requirements for tenants; does no I/O |
//! | [`revocation`] | refuses every write with a revoked certificate |
//! | [`workload_identity`] | distinguishes a cluster from a previous cluster with the same name |
//! | [`tokens`] | extends bootstrap tokens while they are needed |
//! | [`service_ranges`] | reads the addresses of Services, which no node can have |
//! | [`rate_limit`] | limits the work that one requester can cause; does no I/O |
//!
//! # Guarantees
//!
//! - Every part can be repeated. A part does not write anything if the state is already correct.
//! - No part makes a decision about a node. A failure indicates an outage or a missing permission.
//! - If a part fails, the other parts continue.
//! - All parts together need only the permissions in `packaging/rbac/workload-cluster.yaml`. An operator applies the
//!   floor.

mod access;
pub mod admission;
pub mod auto_approve_audit;
pub mod bindings;
#[cfg(test)]
mod evaluated;
pub mod exempt_overlaps;
pub mod floor;
pub mod other_approvers;
mod policies;
pub mod rate_limit;
pub mod revocation;
pub mod service_ranges;
pub mod tokens;
pub mod workload_identity;

pub use access::HardeningError;
