//! Cluster API: what it says of a cluster, its machines and its API server.

mod ca;
mod kubeconfig;

pub use ca::{CaOutOfTime, CaRefused, ClusterCa, KeyDigest};
pub use kubeconfig::{
    Credential, FileField, Impersonation, KubeconfigRefused, Listed, TenantKubeconfig, UrlPart,
};
