//! Cluster API: what it says of a cluster, its machines and its API server.

mod ca;
#[cfg(test)]
mod fixtures;
mod inventory;
mod known;
mod kubeconfig;
mod objects;
mod served;
mod store;
mod watch;

pub use ca::{CaOutOfTime, CaRefused, ClusterCa, KeyDigest};
pub use inventory::CapiInventory;
pub use known::Objects;
pub use kubeconfig::{
    Credential, FileField, Impersonation, KubeconfigRefused, Listed, TenantKubeconfig, UrlPart,
};
pub use objects::{
    Cluster, Endpoint, InvalidObjectKey, InvalidOwnAttestors, ObjectKey, OwnAttestors, Reference,
};
pub(crate) use objects::{are_same, is_paused};
pub(crate) use served::cluster_resource;
pub use watch::{Selection, Watches};
