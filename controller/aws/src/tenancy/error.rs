//! Errors from resolving an identity. These errors never deny a request: the request waits, and a condition of its
//! cluster contains the reason.

use super::allowed_namespaces::InvalidSelector;
use super::identity::{IdentityRef, MAX_DEPTH};
use super::role::{InvalidRoleArn, InvalidRoleSpec};

/// The reason why a cluster's credentials cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolutionError {
    /// An identity does not exist.
    #[error("{identity} does not exist{}", hint(identity))]
    IdentityNotFound {
        /// The identity.
        identity: IdentityRef,
    },
    /// An identity cannot be parsed.
    #[error("{identity} is invalid: {detail}")]
    IdentityInvalid {
        /// The identity.
        identity: IdentityRef,
        /// The error.
        detail: String,
    },
    /// The controller identity does not have the name `default`.
    #[error("AWSClusterControllerIdentity/{0} is not accepted: the name must be default")]
    NotSingleton(String),
    /// The kind is not an identity kind.
    #[error("{0:?} is not a kind of AWS identity")]
    UnsupportedKind(String),
    /// The cluster's identity does not permit the cluster's namespace.
    #[error("allowedNamespaces of {identity} does not permit namespace {namespace}")]
    UsageUnauthorized {
        /// The identity.
        identity: IdentityRef,
        /// The cluster's namespace.
        namespace: String,
    },
    /// The source of an identity does not permit the cluster's namespace.
    #[error("allowedNamespaces of the source {identity} does not permit namespace {namespace}")]
    SourceUsageUnauthorized {
        /// The identity.
        identity: IdentityRef,
        /// The cluster's namespace.
        namespace: String,
    },
    /// The selector is invalid.
    #[error("allowedNamespaces.selector of {identity}: {invalid}")]
    BadSelector {
        /// The identity.
        identity: IdentityRef,
        /// The reason why the selector is invalid.
        invalid: InvalidSelector,
    },
    /// The Secret of an identity does not exist.
    #[error("the Secret {name:?} of {identity} does not exist in namespace {namespace}")]
    SecretNotFound {
        /// The identity.
        identity: IdentityRef,
        /// The namespace of Cluster API Provider AWS.
        namespace: String,
        /// The name of the Secret.
        name: String,
    },
    /// The Secret of an identity has missing keys or invalid values.
    #[error("the Secret {name:?} of {identity} has no valid value for {}", missing.join(" and "))]
    SecretMalformed {
        /// The identity.
        identity: IdentityRef,
        /// The name of the Secret.
        name: String,
        /// The missing or invalid keys.
        missing: Vec<&'static str>,
    },
    /// A role has no source, so the credentials to assume it are unknown.
    #[error("{0} has no sourceIdentityRef")]
    MissingSource(IdentityRef),
    /// A role has invalid parameters.
    #[error("{identity}: {invalid}")]
    InvalidRole {
        /// The identity.
        identity: IdentityRef,
        /// The error.
        invalid: InvalidRoleSpec,
    },
    /// The partition of a role does not match the cluster's region.
    #[error("role {role} is not in partition {partition} of region {region}")]
    PartitionMismatch {
        /// The role's ARN.
        role: String,
        /// The partition of the region.
        partition: &'static str,
        /// The cluster's region.
        region: String,
    },
    /// The sources of an identity form a loop.
    #[error("the sources of the identities form a loop: {}", path(.0))]
    ChainLoop(Vec<IdentityRef>),
    /// The chain has more sources than any real configuration.
    #[error("the chain of identities has more than {} links: {}", MAX_DEPTH, path(.0))]
    ChainTooDeep(Vec<IdentityRef>),
    /// A `ConfigMap` of AWS Controllers for Kubernetes does not exist.
    #[error("the ConfigMap {0} does not exist")]
    CarmMapNotFound(&'static str),
    /// A `ConfigMap` of AWS Controllers for Kubernetes does not have the key.
    #[error("the ConfigMap {map} has no key {key:?}")]
    CarmKeyNotFound {
        /// The name of the `ConfigMap`.
        map: &'static str,
        /// The key.
        key: String,
    },
    /// A value in a `ConfigMap` of AWS Controllers for Kubernetes is empty.
    #[error("the key {key:?} of the ConfigMap {map} is empty")]
    CarmEmptyValue {
        /// The name of the `ConfigMap`.
        map: &'static str,
        /// The key.
        key: String,
    },
    /// A value in a `ConfigMap` of AWS Controllers for Kubernetes is not a role.
    #[error("the key {key:?} of the ConfigMap {map}: {detail}")]
    CarmInvalidValue {
        /// The name of the `ConfigMap`.
        map: &'static str,
        /// The key.
        key: String,
        /// The error.
        detail: String,
    },
    /// The account in an annotation is invalid.
    #[error(
        "the value {value:?} of annotation {annotation} on namespace {namespace} is not an AWS account ID (12 digits)"
    )]
    InvalidAccount {
        /// The annotation.
        annotation: &'static str,
        /// The cluster's namespace.
        namespace: String,
        /// The value of the annotation.
        value: String,
    },
    /// The account does not match the role's account.
    #[error("{0}")]
    AccountMismatch(AccountMismatch),
    /// No `IAMRoleSelector` matches.
    #[error("no IAMRoleSelector matches the instances of the cluster")]
    NoRoleSelector,
    /// Several `IAMRoleSelector` objects match.
    #[error("several IAMRoleSelectors match the instances of the cluster: {}", .0.join(", "))]
    RoleSelectorConflict(Vec<String>),
    /// A matching `IAMRoleSelector` is invalid.
    #[error("IAMRoleSelector {name} is invalid: {detail}")]
    InvalidRoleSelector {
        /// The name of the `IAMRoleSelector`.
        name: String,
        /// The reason why the `IAMRoleSelector` is invalid.
        detail: String,
    },
    /// The namespace of the cluster does not exist.
    #[error("namespace {0} does not exist")]
    NamespaceNotFound(String),
    /// No object specifies an identity for the cluster.
    #[error("no object specifies an AWS identity for the cluster: {0}")]
    IdentityNotNamed(&'static str),
    /// The object that refers to the identity cannot be parsed.
    #[error("{kind} {name} in namespace {namespace} is invalid: {detail}")]
    InfrastructureInvalid {
        /// The kind of the object.
        kind: String,
        /// The name of the object.
        name: String,
        /// The cluster's namespace.
        namespace: String,
        /// The reason why the object cannot be parsed.
        detail: String,
    },
    /// The object that refers to the identity does not exist.
    #[error("{kind} {name} does not exist in namespace {namespace}")]
    InfrastructureNotFound {
        /// The kind of the object.
        kind: String,
        /// The name of the object.
        name: String,
        /// The cluster's namespace.
        namespace: String,
    },
}

/// Two accounts that must match differ.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum AccountMismatch {
    /// The account in the namespace's annotation differs from the account of the role.
    #[display(
        "the namespace belongs to account {annotated}, but role {role} belongs to another account"
    )]
    OfNamespace {
        /// The account in the annotation.
        annotated: String,
        /// The role's ARN.
        role: String,
    },
    /// The cluster's first account and the account of its current identity differ.
    #[display(
        "the cluster's identity first belonged to account {pinned}, but now belongs to account {resolved}"
    )]
    OfCluster {
        /// The first account.
        pinned: String,
        /// The current account.
        resolved: String,
    },
}

impl ResolutionError {
    /// The reason for the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::IdentityNotFound { .. } => "IdentityNotFound",
            Self::IdentityInvalid { .. } => "IdentityInvalid",
            Self::NotSingleton(_) => "NotSingleton",
            Self::UnsupportedKind(_) => "UnsupportedKind",
            Self::UsageUnauthorized { .. } => "UsageUnauthorized",
            Self::SourceUsageUnauthorized { .. } => "SourceUsageUnauthorized",
            Self::BadSelector { .. } => "BadSelector",
            Self::SecretNotFound { .. } => "SecretNotFound",
            Self::SecretMalformed { .. } => "SecretMalformed",
            Self::MissingSource(_) => "MissingSource",
            Self::InvalidRole {
                invalid: InvalidRoleSpec::RoleArn(InvalidRoleArn),
                ..
            }
            | Self::CarmInvalidValue { .. } => "InvalidRoleARN",
            Self::InvalidRole { .. } => "InvalidRole",
            Self::PartitionMismatch { .. } => "PartitionMismatch",
            Self::ChainLoop(_) => "ChainLoop",
            Self::ChainTooDeep(_) => "ChainTooDeep",
            Self::CarmMapNotFound(_) => "CARMMapNotFound",
            Self::CarmKeyNotFound { .. } => "CARMKeyNotFound",
            Self::CarmEmptyValue { .. } => "CARMEmptyValue",
            Self::InvalidAccount { .. } => "InvalidAccount",
            Self::AccountMismatch(_) => "AccountMismatch",
            Self::NoRoleSelector => "NoRoleSelector",
            Self::RoleSelectorConflict(_) => "RoleSelectorConflict",
            Self::InvalidRoleSelector { .. } => "InvalidRoleSelector",
            Self::NamespaceNotFound(_) => "NamespaceNotFound",
            Self::IdentityNotNamed(_) => "IdentityNotNamed",
            Self::InfrastructureInvalid { .. } => "InfrastructureInvalid",
            Self::InfrastructureNotFound { .. } => "InfrastructureNotFound",
        }
    }
}

/// The fix, if it is not obvious.
fn hint(identity: &IdentityRef) -> &'static str {
    if *identity == IdentityRef::controller() {
        ": create it, or enable the feature gate AutoControllerIdentityCreator in Cluster API Provider AWS"
    } else {
        ""
    }
}

fn path(identities: &[IdentityRef]) -> String {
    let names: Vec<String> = identities.iter().map(ToString::to_string).collect();
    names.join(" -> ")
}
