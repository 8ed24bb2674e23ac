//! Names: of nodes, machines, providers, signers, clusters and requests.

mod csr_name;
mod machine;
mod provider;

pub use csr_name::{CSR_NAME_PREFIX, csr_name};
pub use machine::{Audience, InvalidName, NODE_USER_PREFIX, NODES_GROUP, NodeName, ProviderId};
pub use provider::{InvalidProvider, Provider};
