//! The custom resources: what a person configures, and what the controller remembers.
//!
//! [`KubeletAuthentication`] says who may join one Cluster and how; [`NodeIdentity`] says who holds
//! one node's name. Both are beside the Cluster. [`AWSServiceAccountIdentity`] says who EC2 is asked as. [`RevokedNodeCredentials`] is on the workload
//! cluster, where an admission policy reads it.
//!
//! # Guarantees
//!
//! - Every list, map and text has a limit in the schema, so that the API server bounds what the
//!   controller reads, and the cost of the rules.
//! - What the controller must not lose is in `spec`: `clusterctl move` restores no `status`.
//!
//! # Assumptions
//!
//! Fields are as the API server's schema allows them; only its rules are evaluated here again, for objects that an
//! earlier schema accepted (`settings_file` of the runtime).

mod aws;
mod aws_service_account_identity;
mod combinations;
pub mod conditions;
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
pub use kubelet_authentication::{
    Adoption, AutoApproveBindings, BootstrapTokens, BuiltInRenewal, CertificateSettings,
    GuestReportedAddresses, IdentityCounts, KubeletAuthentication, KubeletAuthenticationSpec,
    KubeletAuthenticationStatus,
};
pub use manifests::{manifests, workload_manifest, yaml};
pub use name::object_name;
pub use node_identity::{
    LastTpmBoot, NodeIdentity, NodeIdentitySpec, NodeIdentityStatus, Opened, Revoked, Tombstone,
    TombstoneReason, TpmBoot,
};
pub use revoked_node_credentials::{
    MAX_REVOKED, MAX_REVOKED_KEYS, REVOKED_NODE_CREDENTIALS, RevokedGenerations, RevokedKey,
    RevokedNodeCredentials, RevokedNodeCredentialsSpec,
};
pub use tpm::{
    AllowedEndorsementKey, EndorsementKeyPlatform, EndorsementKeys, LateProviderIds, OsSeparator,
    PcrPolicy, PcrSet, TpmSettings,
};

/// The API group of our resources and annotations.
pub const GROUP: &str = "attestation.cluster.x-k8s.io";

/// The annotation by which a person allows one round to retire as many records of the Cluster, on its
/// [`KubeletAuthentication`].
pub const ALLOW_RETIREMENT_ANNOTATION: &str = "attestation.cluster.x-k8s.io/allow-retirement";

/// The annotation of a [`KubeletAuthentication`] with the account of AWS that the Cluster's identity was of first. Its
/// removal accepts another.
pub const AWS_ACCOUNT_ANNOTATION: &str = "attestation.cluster.x-k8s.io/aws-account";

/// The annotation of a [`KubeletAuthentication`] that a Cluster asked for by itself; what has none was
/// made by a person.
///
/// Not the owner or the field manager tells: a person may set the one, and `clusterctl move` loses the
/// other.
pub const ENABLED_BY_ANNOTATION: &str = "attestation.cluster.x-k8s.io/enabled-by";

/// The annotation of a Machine with the ID of the bootstrap token that an operator assigned to it, in addition to the
/// token of its `KubeadmConfig`.
pub const BOOTSTRAP_TOKEN_ANNOTATION: &str = "attestation.cluster.x-k8s.io/bootstrap-token-id";

/// The label with the Cluster's name, on every object that belongs to one; Cluster API's own.
pub const CLUSTER_NAME_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// The annotation by which a person gives a [`NodeIdentity`] up for the next claim.
///
/// Its value is the generation that it gives up: applied again, or restored, it does nothing.
pub const RESET_ANNOTATION: &str = "attestation.cluster.x-k8s.io/reset";

/// The annotation of a [`KubeletAuthentication`] with the lowest generation of any record whose certificates are valid,
/// in seconds since 1970. It only grows: a lower value than the workload cluster's has no effect.
pub const LOWEST_VALID_GENERATION_ANNOTATION: &str =
    "attestation.cluster.x-k8s.io/lowest-valid-generation";

/// The annotation of a [`KubeletAuthentication`] with the revoked machines that an operator released, each as
/// `<provider ID>@<Unix seconds>`, separated by spaces: what was revoked until that time does not stop the machine.
pub const RELEASED_MACHINES_ANNOTATION: &str = "attestation.cluster.x-k8s.io/released-machines";

/// The annotation of a [`KubeletAuthentication`] with the UID of the namespace `kube-system` in the workload cluster
/// that it was served with first. Another one is a Cluster that was created again.
pub const WORKLOAD_UID_ANNOTATION: &str = "attestation.cluster.x-k8s.io/workload-uid";

#[cfg(test)]
mod reference;
