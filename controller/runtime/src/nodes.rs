//! The Nodes of a workload cluster, in its API server.

mod addresses;
mod states;

pub use addresses::KubeNodeAddresses;
pub use states::KubeNodes;
