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

/// The annotation on a [`KubeletAuthentication`] with which an operator permits the controller to retire more node
/// identities than usual. Its value is the number of node identities that one sweep is allowed to retire because their
/// Machines are missing. Node identities of Machines whose deletion the controller observed do not count.
pub const ALLOW_RETIREMENT_ANNOTATION: &str = "attestation.cluster.x-k8s.io/allow-retirement";

/// The annotation on a [`KubeletAuthentication`] that stores the first AWS account of the Cluster's identity. After an
/// operator removes the annotation, the controller accepts a different account.
pub const AWS_ACCOUNT_ANNOTATION: &str = "attestation.cluster.x-k8s.io/aws-account";

/// The annotation on each [`KubeletAuthentication`] that the controller created because of an annotation on the
/// Cluster. A [`KubeletAuthentication`] without this annotation was created by an operator.
///
/// Neither the owner nor the field manager identifies the creator: an operator can set the owner, and `clusterctl move`
/// drops the field manager.
pub const ENABLED_BY_ANNOTATION: &str = "attestation.cluster.x-k8s.io/enabled-by";

/// The annotation on a Machine with the ID of a bootstrap token that an operator assigned to the Machine, in addition
/// to the token in its `KubeadmConfig`.
pub const BOOTSTRAP_TOKEN_ANNOTATION: &str = "attestation.cluster.x-k8s.io/bootstrap-token-id";

/// The label with the Cluster's name, on every object that belongs to a Cluster. Cluster API defines it.
pub const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// The annotation on a [`NodeIdentity`] with which an operator resets the node identity, so that the next claim can
/// take the name.
///
/// Its value is the generation to reset. Therefore an annotation that is applied again or restored does not affect a
/// later generation.
pub const RESET_ANNOTATION: &str = "attestation.cluster.x-k8s.io/reset";

/// The annotation on a [`KubeletAuthentication`] with the lowest valid generation for all node identities, in seconds
/// since 1970. The value can only increase: a value that is lower than the value in the workload cluster has no effect.
pub const LOWEST_VALID_GENERATION_ANNOTATION: &str =
    "attestation.cluster.x-k8s.io/lowest-valid-generation";

/// The annotation on a [`KubeletAuthentication`] with the revoked machines that an operator released, each as
/// `<provider ID>@<Unix seconds>`, separated by spaces. Revocations up to that time no longer affect the machine.
pub const RELEASED_MACHINES_ANNOTATION: &str = "attestation.cluster.x-k8s.io/released-machines";

/// The annotation on a [`NodeIdentity`] or a [`KubeletAuthentication`] with the name of the user who last changed it
/// with `identities`, for example to revoke or reset a node identity. An admission policy checks the name.
pub const CHANGED_BY_ANNOTATION: &str = "attestation.cluster.x-k8s.io/changed-by";

/// The annotation on a [`KubeletAuthentication`] with the UID of the namespace `kube-system` in the first workload
/// cluster that the controller served for this object. A different UID shows that the Cluster was created again.
pub const WORKLOAD_UID_ANNOTATION: &str = "attestation.cluster.x-k8s.io/workload-uid";

#[cfg(test)]
mod reference;
