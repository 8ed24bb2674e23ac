//! The kinds of objects that refer to identities.

use crate::tenancy::IdentityKind;

/// A watched object kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub enum Source {
    /// Identities of this kind.
    #[display("{_0}")]
    Identities(IdentityKind),
    /// Objects of this kind, which refer to an identity.
    #[display("{_0}")]
    Infrastructure(&'static str),
    /// `Cluster`.
    #[display("Cluster")]
    Clusters,
    /// `Namespace`.
    #[display("Namespace")]
    Namespaces,
    /// The Secret with this name.
    #[display("Secret {_0}")]
    Secret(String),
    /// The `ConfigMap` with this name.
    #[display("ConfigMap {_0}")]
    ConfigMap(&'static str),
    /// `IAMRoleSelector`.
    #[display("IAMRoleSelector")]
    RoleSelectors,
}

impl Source {
    /// Returns the kind of the objects from this source.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Identities(kind) => kind.kind(),
            Self::Infrastructure(kind) => kind,
            Self::Clusters => "Cluster",
            Self::Namespaces => "Namespace",
            Self::Secret(_) => "Secret",
            Self::ConfigMap(_) => "ConfigMap",
            Self::RoleSelectors => "IAMRoleSelector",
        }
    }

    /// Returns the name of the object, if the source has only one object.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Secret(name) => Some(name),
            Self::ConfigMap(name) => Some(name),
            Self::Identities(_)
            | Self::Infrastructure(_)
            | Self::Clusters
            | Self::Namespaces
            | Self::RoleSelectors => None,
        }
    }

    /// Whether the objects are in the namespaces of Clusters.
    pub fn is_namespaced(&self) -> bool {
        matches!(
            self,
            Self::Clusters
                | Self::Infrastructure(_)
                | Self::Identities(IdentityKind::ServiceAccount)
        )
    }
}
