//! Locks that tenants share, and their measurement in tests and benchmarks.

pub use node_attestation_turns::shared::*;
