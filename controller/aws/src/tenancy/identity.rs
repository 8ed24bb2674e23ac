//! The identities in Cluster API Provider AWS, as stored by the API server, and this project's
//! `AWSServiceAccountIdentity`.

use std::fmt;

use serde::Deserialize;

use super::allowed_namespaces::AllowedNamespaces;
use super::role::RoleSpec;

/// The name of the only `AWSClusterControllerIdentity`.
pub(super) const CONTROLLER_IDENTITY_NAME: &str = "default";

/// The maximum number of identities in a chain.
pub(super) const MAX_DEPTH: usize = 5;

/// A kind of identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{}", self.kind())]
pub enum IdentityKind {
    /// The controller's own credentials.
    Controller,
    /// An access key in a Secret.
    Static,
    /// A role that another identity assumes.
    Role,
    /// A role that a service account in the cluster's namespace assumes.
    ServiceAccount,
}

impl IdentityKind {
    /// All kinds of identities.
    pub const ALL: [Self; 4] = [
        Self::Controller,
        Self::Static,
        Self::Role,
        Self::ServiceAccount,
    ];

    /// The kind with this name.
    pub fn named(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.kind() == kind)
    }

    /// Returns the name of the kind.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Controller => "AWSClusterControllerIdentity",
            Self::Static => "AWSClusterStaticIdentity",
            Self::Role => "AWSClusterRoleIdentity",
            Self::ServiceAccount => "AWSServiceAccountIdentity",
        }
    }
}

/// An identity, identified by its kind and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityRef {
    /// The kind of the identity.
    pub kind: IdentityKind,
    /// The name of the identity.
    pub name: String,
}

impl fmt::Display for IdentityRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl IdentityRef {
    /// The controller's identity, which is used if a cluster does not specify one.
    pub fn controller() -> Self {
        Self {
            kind: IdentityKind::Controller,
            name: CONTROLLER_IDENTITY_NAME.to_owned(),
        }
    }
}

/// `identityRef` or `sourceIdentityRef`, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RawIdentityRef {
    /// The name of the kind.
    pub kind: String,
    /// The name of the identity.
    pub name: String,
    /// The namespace. This value is not a field in the API, and is ignored.
    #[serde(default)]
    pub namespace: Option<String>,
}

/// `spec` of an `AWSClusterControllerIdentity`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerIdentity {
    /// The namespaces that are allowed to use the identity. `None` allows no namespace.
    pub allowed_namespaces: Option<AllowedNamespaces>,
}

/// `spec` of an `AWSClusterStaticIdentity`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StaticIdentity {
    /// The namespaces that are allowed to use the identity. `None` allows no namespace.
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// The name of a Secret in the namespace of Cluster API Provider AWS.
    pub secret_ref: String,
}

/// `spec` of an `AWSClusterRoleIdentity`.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleIdentity {
    /// The namespaces that are allowed to use the identity. `None` allows no namespace.
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// The role.
    pub role: RoleSpec,
    /// The identity that assumes the role.
    pub source_identity_ref: Option<RawIdentityRef>,
}

/// The other fields of a [`RoleIdentity`]. They are parsed separately from the role, because serde would parse all
/// unknown fields along with a flattened field, but only to a limited depth.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RoleReferences {
    pub(super) allowed_namespaces: Option<AllowedNamespaces>,
    pub(super) source_identity_ref: Option<RawIdentityRef>,
}
