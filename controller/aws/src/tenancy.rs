//! The AWS identity of a workload cluster: the credentials for EC2 calls about its instances.
//!
//! The modules up to `cluster` are pure: they use objects that later modules watch, and make no calls.
//!
//! # Modules
//!
//! Each module imports only modules above it.
//!
//! - `allowed_namespaces`: the namespaces that are allowed to use an identity
//! - `role`: a role to assume
//! - `identity`: the identities of Cluster API Provider AWS, and service accounts
//! - `plan`: the path to the credentials of a cluster, and its digests
//! - `role_selector`: `IAMRoleSelector` of AWS Controllers for Kubernetes
//! - `objects`: the objects that a resolution reads
//! - `error`: the reasons why the credentials of a cluster are unknown
//! - `chain`: the chain of identities
//! - `selected_role`: the role of the only `IAMRoleSelector` that matches
//! - `carm`: annotations and `ConfigMap`s of AWS Controllers for Kubernetes
//! - `cluster`: the object that specifies a cluster's identity, and the order of precedence
//! - `sessions`: role sessions, each shared by all tenants with the same calls
//! - `store`: the objects that specify the identities of clusters
//! - `stored_objects`: the stored fields of objects in the management cluster
//! - `read`: the identity of one cluster, for `tenancy explain`
//! - `watch`: the watches that fill the store
//! - `credentials`: the credentials of each tenant

mod allowed_namespaces;
mod carm;
mod chain;
mod cluster;
pub mod credentials;
mod error;
mod identity;
mod objects;
mod plan;
pub mod read;
mod role;
mod role_selector;
mod selected_role;
pub mod sessions;
pub mod store;
pub mod stored_objects;
#[cfg(test)]
pub(crate) mod testing;
pub mod watch;

pub use self::allowed_namespaces::{AllowedNamespaces, InvalidSelector, Labels, Permission};
pub use self::cluster::{
    Ack, Cluster, DecidedBy, Explanation, Infrastructure, ObjectRef, TenancySettings, explain,
};
pub use self::error::{AccountMismatch, ResolutionError};
pub use self::identity::{
    ControllerIdentity, IdentityKind, IdentityRef, RawIdentityRef, RoleIdentity, StaticIdentity,
};
pub use self::objects::{
    ACCOUNT_MAP, Identity, MAX_SERVICE_ACCOUNTS, MissingKeys, Namespace, Objects, Readable,
    ServiceAccounts, TEAM_MAP, Unreadable, access_key,
};
pub use self::plan::{AccessKey, DigestKey, Link, Plan, Root, ServiceAccount, Warning};
pub use self::role::{InvalidRoleArn, InvalidRoleSpec, Role, RoleArn, RoleSpec};
pub use self::role_selector::{MatchLabels, NamespaceSelector, ResourceType, RoleSelector};
