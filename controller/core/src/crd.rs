//! The custom resources: the configuration from operators, and the controller's stored state.
//!
//! [`KubeletAuthentication`] specifies which machines can join one Cluster, and with which evidence. [`NodeIdentity`]
//! records the holder of one node name. Both are in the namespace of the Cluster. [`AWSServiceAccountIdentity`]
//! specifies the AWS identity for EC2 calls. [`RevokedNodeCredentials`] is in the workload cluster, where an admission
//! policy reads it.
//!
//! # Guarantees
//!
//! - Every list, map and text has a limit in the schema. Therefore the API server limits the amount of data that the
//!   controller reads, and the cost of the CEL rules.
//! - `spec` contains all state that the controller must not lose, because `clusterctl move` does not restore `status`.
//!
//! # Assumptions
//!
//! The API server has validated all fields against the schema. The controller evaluates only the CEL rules again, for
//! objects that an earlier schema accepted (`settings_file` in the runtime).

mod annotations;
mod aws;
mod aws_service_account_identity;
mod combinations;
pub mod conditions;
mod exempt_nodes;
mod kubelet_authentication;
mod manifests;
mod name;
mod node_identity;
mod revoked_node_credentials;
mod schema;
mod system_time;
mod tpm;

pub use annotations::{
    ALLOW_RETIREMENT_ANNOTATION, AWS_ACCOUNT_ANNOTATION, BOOTSTRAP_TOKEN_ANNOTATION,
    CHANGED_BY_ANNOTATION, ENABLED_BY_ANNOTATION, LOWEST_VALID_GENERATION_ANNOTATION,
    RELEASED_MACHINES_ANNOTATION, RESET_ANNOTATION, WORKLOAD_UID_ANNOTATION,
};
pub use aws::{AwsNodeName, AwsSettings};
pub use aws_service_account_identity::{AWSServiceAccountIdentity, AWSServiceAccountIdentitySpec};
pub use exempt_nodes::{ExemptNodes, Exemption};
pub use kubelet_authentication::{
    Adoption, AutoApproveBindings, BootstrapTokens, CertificateSettings, GuestReportedAddresses,
    IdentityCounts, KubeletAuthentication, KubeletAuthenticationSpec, KubeletAuthenticationStatus,
};
pub use manifests::{identity_manifest, manifests, workload_manifest, yaml};
pub use name::object_name;
pub use node_identity::{
    LastTpmBoot, NodeIdentity, NodeIdentitySpec, NodeIdentityStatus, Opened, Revoked, Tombstone,
    TombstoneReason, TpmBoot,
};
pub use revoked_node_credentials::{
    REVOKED_NODE_CREDENTIALS, RevokedGenerations, RevokedKey, RevokedNodeCredentials,
    RevokedNodeCredentialsSpec,
};
pub use schema::{MAX_REVOKED, MAX_REVOKED_KEYS};
pub use tpm::{
    AllowedEndorsementKey, EndorsementKeyPlatform, EndorsementKeys, LateProviderIds, OsSeparator,
    PcrPolicy, PcrSet, TpmSettings,
};

/// The API group of this project's resources and annotations.
pub const GROUP: &str = "attestation.cluster.x-k8s.io";

/// The label with the Cluster's name, on every object that belongs to a Cluster. Cluster API defines it.
pub const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

#[cfg(test)]
mod reference;
