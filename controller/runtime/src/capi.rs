//! Cluster API: the objects of a Cluster, its machines, and its API server.

mod api_discovery;
mod ca;
mod cache;
mod departures;
mod inventory;
mod kubeconfig;
mod lookups;
mod objects;
mod own_tokens;
mod owner;
mod rereads;
mod secret_values;
mod selection;
mod store;
mod templates;
#[cfg(test)]
mod testing;
mod watch;
mod workload_access;

pub use api_discovery::listed;
pub(crate) use api_discovery::{cluster_resource, required_cluster_resource};
pub(crate) use ca::ca_secret_name;
pub use ca::{CaOutOfTime, CaRefused, ClusterCa};
pub use cache::Objects;
pub use inventory::CapiInventory;
pub(crate) use inventory::{KnownMachine, TokenMachine};
#[cfg(test)]
pub(crate) use kubeconfig::created_clients;
pub(crate) use kubeconfig::kubeconfig_secret_name;
pub use kubeconfig::{KubeconfigRefused, TenantKubeconfig};
pub(crate) use lookups::Lookups;
#[cfg(test)]
pub(crate) use objects::each_read_alone;
pub use objects::{
    Attested, Cluster, ClusterObserver, ClusterReferences, Endpoint, InvalidObjectKey,
    InvalidOwnAttestors, NODE_ATTESTED, ObjectKey, OwnAttestors, Reference, ReferencedObject,
    condition_digest,
};
pub(crate) use objects::{
    CORE_API_VERSION, PAUSED_ANNOTATION, WATCH_FILTER_LABEL, are_same, is_paused,
};
pub(crate) use own_tokens::{MemberMachine, OwnToken, TokenOfMachine, member_machines, own_tokens};
pub(crate) use owner::{has_former_version, is_cluster, renew_versions};
#[cfg(test)]
pub(crate) use secret_values::each_read_alone as each_secret_read_alone;
pub(crate) use secret_values::{CA_KEYS, KUBECONFIG_KEY, SecretValues};
pub use selection::Selection;
pub(crate) use templates::Recorded;
#[cfg(test)]
pub(crate) use testing::{
    ca_secret, ca_secret_without_key, kept_len, objects_with_an_unreadable_config,
    objects_with_tokens, token_of,
};
pub(crate) use workload_access::kubeconfig_text;
pub use workload_access::{TokenClaims, access_secret_name};
