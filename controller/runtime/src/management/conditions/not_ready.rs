//! The reasons why a cluster is not served. Each reason includes the next step for the operator.

use std::num::NonZeroUsize;

use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::conditions::{ConditionReport, reason};
use node_attestation_core::signer::InvalidCa;
use node_attestation_core::verifier::VerifierUnavailable;

use crate::capi::{CaRefused, KubeconfigRefused};
use crate::management::configuration::InvalidSpec;
use crate::watch::Unreadable;

/// The reason why a cluster is not served.
///
/// Its `Display` is the message of a condition, and does not contain secrets.
#[derive(Debug, thiserror::Error)]
pub(in crate::management) enum NotReady {
    #[error("Cluster {0} does not exist")]
    ClusterNotFound(String),
    #[error("the controller cannot read Cluster {name}: {source}")]
    ClusterUnreadable { name: String, source: Unreadable },
    #[error("the Cluster is paused")]
    ClusterPaused,
    #[error("annotation cluster.x-k8s.io/paused is set")]
    Paused,
    #[error(
        "the name must be {0}, the name of the Cluster: a Cluster can have only one KubeletAuthentication"
    )]
    Misnamed(String),
    #[error("Secret {0} does not exist")]
    KubeconfigNotFound(String),
    #[error(
        "the kubeconfig in Secret {name} is not accepted: {}",
        error_chain(source)
    )]
    KubeconfigRefused {
        name: String,
        source: KubeconfigRefused,
    },
    #[error("the controller cannot read Secret {name}: {source}")]
    KubeconfigUnreadable { name: String, source: Unreadable },
    #[error("Secret {0} does not exist")]
    CaNotFound(String),
    #[error("the CA in Secret {name} is not accepted: {}", error_chain(source))]
    CaRefused { name: String, source: CaRefused },
    #[error("the controller cannot read Secret {name}: {source}")]
    CaUnreadable { name: String, source: Unreadable },
    /// Another Cluster has the private key of the CA. Its name is known only if it is in the same namespace. A CA
    /// certificate is public, and a tenant can put the certificate of any Cluster into its own Secret.
    #[error(
        "{} has the private key of this CA: a certificate of one cluster would be valid in the other. Give each \
         Cluster a separate CA",
        other_cluster(.0.as_deref())
    )]
    SharedCa(Option<String>),
    /// None of the authorized attestation providers is available.
    #[error("{why}")]
    NoAttestor {
        why: VerifierUnavailable,
        availability: Box<ConditionReport>,
    },
    #[error(transparent)]
    Spec(InvalidSpec),
    #[error(
        "Secret {0} has no tls.key, and the controller has no external signer, so the controller does not answer \
         requests from the Cluster. Put the CA's key into the Secret, or start the controller with \
         --signer-endpoint if another program holds the key"
    )]
    CaKeyNotFound(String),
    #[error(
        "the namespace has more than {0} KubeletAuthentications, and the controller serves only the {0} oldest. \
         Delete the KubeletAuthentications of Clusters that no longer exist, or ask the operator to raise \
         --max-clusters-per-namespace"
    )]
    TooManyClusters(NonZeroUsize),
    /// A task of the cluster panicked. The tasks restart.
    #[error("internal error; the controller restarts the tasks of the Cluster")]
    Broken,
}

/// Describes the Cluster with this name in the same namespace, or a Cluster in another namespace.
fn other_cluster(name: Option<&str>) -> String {
    name.map_or_else(
        || "a Cluster in another namespace".to_owned(),
        |name| format!("Cluster {name}"),
    )
}

impl NotReady {
    /// The reason for the condition.
    pub(in crate::management) fn reason(&self) -> &'static str {
        match self {
            Self::ClusterNotFound(_) | Self::ClusterUnreadable { .. } => reason::CLUSTER_NOT_FOUND,
            Self::ClusterPaused | Self::Paused => reason::PAUSED,
            Self::Misnamed(_) => reason::MISNAMED,
            Self::KubeconfigNotFound(_) => reason::KUBECONFIG_NOT_FOUND,
            Self::KubeconfigRefused { .. } | Self::KubeconfigUnreadable { .. } => {
                reason::KUBECONFIG_REFUSED
            }
            Self::CaNotFound(_) => reason::CA_NOT_FOUND,
            Self::CaRefused {
                source: CaRefused::Invalid(InvalidCa::KeyMismatch),
                ..
            } => reason::CA_KEY_MISMATCH,
            Self::CaRefused { .. } | Self::CaUnreadable { .. } => reason::CA_INVALID,
            Self::SharedCa(_) => reason::SHARED_CA,
            Self::NoAttestor { why, .. } => why.reason(),
            Self::Spec(InvalidSpec::Audience(_)) => reason::AUDIENCE_INVALID,
            Self::Spec(InvalidSpec::Combination(_)) => reason::SETTINGS_INVALID,
            Self::Spec(InvalidSpec::ServingAddressRange(_)) => {
                reason::SERVING_ADDRESS_RANGE_INVALID
            }
            Self::CaKeyNotFound(_) => reason::CA_KEY_NOT_FOUND,
            Self::TooManyClusters(_) => reason::TOO_MANY_CLUSTERS,
            Self::Broken => reason::INTERNAL_ERROR,
        }
    }
}
