//! Hardening the join: on a workload cluster, every way to a kubelet's certificate that goes round
//! attestation is closed, and shown closed.

mod access;
pub mod admission;
pub mod bindings;
pub mod budget;
pub mod closure;
mod policies;
pub mod tokens;

pub use access::{HardeningError, Put};
