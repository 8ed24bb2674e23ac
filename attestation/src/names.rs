//! Names of nodes, machines, providers, signers, clusters and requests.

mod csr_name;
mod machine;
mod provider;

pub use csr_name::{CSR_NAME_PREFIX, csr_name};
pub use machine::{
    Audience, InvalidName, NODE_USER_PREFIX, NODES_GROUP, NodeName, ProviderId, is_dns_label,
    is_dns_subdomain,
};
pub use provider::{
    BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, InvalidProvider, Provider,
    SERVING_SIGNER_PREFIX,
};
