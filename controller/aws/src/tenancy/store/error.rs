//! The reasons why the identity of a cluster is unknown.

use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::watch::Unreadable;

use super::{MAX_SECRETS, Source};
use crate::bounded::NamespaceLimits;
use crate::tenancy::ResolutionError;

/// The reason why a cluster's identity cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Objects from this source have not been read yet.
    #[error("the controller has not read the {0} objects in the management cluster yet")]
    NotRead(Source),
    /// The watch for these objects is broken.
    #[error(
        "the watch of {0} objects in the management cluster has been broken for more than 2 minutes"
    )]
    WatchBroken(Source),
    /// The watch for these objects is interrupted, so denials must not be based on it.
    #[error("the watch of {0} objects in the management cluster is broken")]
    WatchInterrupted(Source),
    /// Identities refer to more Secrets than the controller watches.
    #[error(
        "the controller does not read the Secret {0:?}: identities reference more than {MAX_SECRETS} Secrets"
    )]
    TooManySecrets(String),
    /// A namespace has more objects of a kind than the controller keeps, and this object is not kept.
    #[error(
        "the controller does not read {kind} {name} if it exists: namespace {namespace} has more than {limit} such \
         objects, or these objects use the namespace's part of the memory. Delete some of these objects, and then \
         change this object, so that the controller reads it"
    )]
    TooManyObjects {
        /// The kind of the object.
        kind: String,
        /// The name of the object.
        name: String,
        /// The namespace.
        namespace: String,
        /// The limit of the namespace.
        limit: usize,
    },
    /// The Cluster does not exist.
    #[error("Cluster {0} does not exist")]
    ClusterNotFound(ObjectKey),
    /// The Cluster cannot be read.
    #[error("cannot parse Cluster {cluster}: {detail}")]
    ClusterUnreadable {
        /// The Cluster.
        cluster: ObjectKey,
        /// The error.
        detail: Unreadable,
    },
    /// The objects do not specify a usable identity.
    #[error(transparent)]
    Unresolved(#[from] ResolutionError),
}

impl IdentityError {
    /// The error for an object that is missing because its namespace has too many objects.
    pub(super) fn too_many(
        kind: &str,
        name: &str,
        namespace: &str,
        limits: NamespaceLimits,
    ) -> Self {
        Self::TooManyObjects {
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            limit: limits.objects,
        }
    }

    /// The reason for the condition. `None` while the objects are unknown.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Unresolved(error) => Some(error.reason()),
            Self::TooManySecrets(_) => Some("TooManySecrets"),
            Self::TooManyObjects { .. } => Some("TooManyObjects"),
            Self::ClusterUnreadable { .. } => Some("ClusterInvalid"),
            Self::NotRead(_)
            | Self::WatchBroken(_)
            | Self::WatchInterrupted(_)
            | Self::ClusterNotFound(_) => None,
        }
    }
}
