//! Cluster API: what it says of a cluster, its machines and its API server.

mod kubeconfig;

pub use kubeconfig::{
    Credential, FileField, Impersonation, KubeconfigRefused, Listed, TenantKubeconfig, UrlPart,
};
