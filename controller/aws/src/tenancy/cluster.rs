//! The object that specifies a cluster's identity, and the order of precedence.

use serde::Deserialize;

use super::allowed_namespaces::Labels;
use super::carm;
use super::chain::{self, ClusterPlace};
use super::error::ResolutionError;
use super::identity::{IdentityKind, IdentityRef, RawIdentityRef};
use super::objects::{Namespace, OWNER_ACCOUNT_ID, Objects, TEAM_ID};
use super::plan::{Link, Plan, Warning};
use super::selected_role;

/// The operator's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenancySettings {
    /// The order of precedence for clusters that Cluster API Provider AWS did not create.
    pub ack: Ack,
    /// Whether clusters without a named identity use the controller's own credentials.
    pub allow_controller_identity_fallback: bool,
}

/// AWS Controllers for Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// AWS Controllers for Kubernetes are not used.
    #[default]
    Off,
    /// Namespace annotations and `ConfigMap` objects.
    Carm,
    /// `IAMRoleSelector`.
    RoleSelectors,
}

/// A Cluster API Cluster, with the fields that determine its identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The namespace of the Cluster.
    pub namespace: String,
    /// The name of the Cluster.
    pub name: String,
    /// The labels of the Cluster.
    pub labels: Labels,
    /// `spec.infrastructureRef`.
    pub infrastructure: Option<ObjectRef>,
    /// `spec.controlPlaneRef`.
    pub control_plane: Option<ObjectRef>,
}

/// A reference to an object in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct ObjectRef {
    /// The kind of the object.
    pub kind: String,
    /// The name of the object.
    pub name: String,
}

/// The `spec` of an object that refers to an identity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Infrastructure {
    /// The identity. `None` for the controller's own identity.
    pub identity_ref: Option<RawIdentityRef>,
    /// The cluster's region.
    pub region: Option<String>,
}

impl Cluster {
    /// The object kinds whose `spec.identityRef` is used. The last kind is used if it is in `spec.infrastructureRef`,
    /// and the other kinds are used if they are in `spec.controlPlaneRef`.
    pub const DECIDERS: [&str; 3] = ["AWSManagedControlPlane", "ROSAControlPlane", "AWSCluster"];

    /// The object whose `spec.identityRef` is used: a managed control plane, or the `AWSCluster`. `None` if Cluster API
    /// Provider AWS did not create the cluster.
    pub fn decider(&self) -> Option<&ObjectRef> {
        let [managed, rosa, own] = Self::DECIDERS;
        let is_managed = |object: &&ObjectRef| [managed, rosa].contains(&&*object.kind);
        let is_own = |object: &&ObjectRef| object.kind == own;
        let managed = self.control_plane.as_ref().filter(is_managed);
        managed.or_else(|| self.infrastructure.as_ref().filter(is_own))
    }
}

/// The resolution of a cluster's identity, including the steps that lead to its result.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The object that determines the identity.
    pub decided_by: DecidedBy,
    /// The identities that permit the cluster's namespace, up to the point at which the resolution ended. The cluster's
    /// own identity is first.
    pub chain: Vec<Link>,
    /// The plan.
    pub plan: Result<Plan, ResolutionError>,
}

/// The object that determines a cluster's identity.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum DecidedBy {
    /// The `KubeletAuthentication` specifies a service account identity.
    #[display("spec.aws.serviceAccountIdentity of the KubeletAuthentication")]
    KubeletAuthentication,
    /// An object of Cluster API Provider AWS specifies an identity.
    #[display("spec.identityRef of {} {}", _0.kind, _0.name)]
    IdentityRef(ObjectRef),
    /// An object of Cluster API Provider AWS does not specify an identity.
    #[display("{} {}, which has no spec.identityRef", _0.kind, _0.name)]
    NoIdentityRef(ObjectRef),
    /// The annotations on the Namespace, and `ConfigMap` objects.
    #[display("the Namespace annotations and the ConfigMaps of AWS Controllers for Kubernetes")]
    Carm,
    /// An `IAMRoleSelector`.
    #[display("the IAMRoleSelector that matches the Cluster")]
    RoleSelectors,
    /// The operator's fallback option.
    #[display("--allow-controller-identity-fallback")]
    Fallback,
    /// No object determines the identity.
    #[display("nothing")]
    Nothing,
}

/// Resolves the plan for a cluster, with the steps that lead to it. `infrastructure` is the object that
/// [`Cluster::decider`] returns. `service_account` is the identity in the cluster's `KubeletAuthentication`.
///
/// The controller's own credentials are used only if the operator or an identity specifies them.
pub fn explain(
    objects: &Objects,
    cluster: &Cluster,
    infrastructure: Option<&Infrastructure>,
    service_account: Option<&str>,
    settings: TenancySettings,
) -> Explanation {
    let default = Namespace::default();
    let namespace = objects
        .namespaces
        .get(&cluster.namespace)
        .unwrap_or(&default);
    let tenant = ClusterPlace {
        namespace: &cluster.namespace,
        region: infrastructure.and_then(|found| found.region.as_deref()),
    };
    let mut chain = Vec::new();
    let (decided_by, plan) = if let Some(name) = service_account {
        let identity = IdentityRef {
            kind: IdentityKind::ServiceAccount,
            name: name.to_owned(),
        };
        let plan = chain::resolve(objects, identity, tenant, &mut chain);
        (DecidedBy::KubeletAuthentication, plan)
    } else if let Some(decider) = cluster.decider() {
        let identity = infrastructure.and_then(|found| found.identity_ref.as_ref());
        let decided_by = match identity {
            Some(_) => DecidedBy::IdentityRef(decider.clone()),
            None => DecidedBy::NoIdentityRef(decider.clone()),
        };
        let not_found = || ResolutionError::InfrastructureNotFound {
            kind: decider.kind.clone(),
            name: decider.name.clone(),
            namespace: cluster.namespace.clone(),
        };
        let found = infrastructure.ok_or_else(not_found);
        let plan = found
            .and_then(|found| of_provider(objects, decider, found, tenant, namespace, &mut chain));
        (decided_by, plan)
    } else {
        of_no_provider(objects, cluster, settings)
    };
    Explanation {
        decided_by,
        chain,
        plan,
    }
}

/// Returns the plan for a cluster that Cluster API Provider AWS did not create.
fn of_no_provider(
    objects: &Objects,
    cluster: &Cluster,
    settings: TenancySettings,
) -> (DecidedBy, Result<Plan, ResolutionError>) {
    match settings.ack {
        Ack::Carm => {
            let not_found = || ResolutionError::NamespaceNotFound(cluster.namespace.clone());
            let namespace = objects.namespaces.get(&cluster.namespace);
            let plan = namespace
                .ok_or_else(not_found)
                .and_then(|namespace| carm::resolve(objects, &cluster.namespace, namespace));
            if let Some(plan) = plan.transpose() {
                return (DecidedBy::Carm, plan);
            }
        }
        Ack::RoleSelectors => {
            let plan = selected_role::resolve(objects, &cluster.namespace, &cluster.labels);
            let is_fallback = settings.allow_controller_identity_fallback
                && matches!(plan, Err(ResolutionError::NoRoleSelector));
            if !is_fallback {
                return (DecidedBy::RoleSelectors, plan);
            }
        }
        Ack::Off => {}
    }
    if settings.allow_controller_identity_fallback {
        return (DecidedBy::Fallback, Ok(Plan::controller()));
    }
    let why = match settings.ack {
        Ack::Carm => "its namespace has no usable annotation of AWS Controllers for Kubernetes",
        Ack::Off | Ack::RoleSelectors => "it is not a cluster of Cluster API Provider AWS",
    };
    (
        DecidedBy::Nothing,
        Err(ResolutionError::IdentityNotNamed(why)),
    )
}

fn of_provider(
    objects: &Objects,
    decider: &ObjectRef,
    found: &Infrastructure,
    tenant: ClusterPlace<'_>,
    namespace: &Namespace,
    chain: &mut Vec<Link>,
) -> Result<Plan, ResolutionError> {
    let identity = match &found.identity_ref {
        Some(reference) => IdentityRef::parse(reference)?,
        None => IdentityRef::controller(),
    };
    let mut plan = chain::resolve(objects, identity, tenant, chain)?;
    if found
        .identity_ref
        .iter()
        .any(|reference| reference.namespace.is_some())
    {
        plan.warnings.push(Warning::NamespaceIgnored);
    }
    if [OWNER_ACCOUNT_ID, TEAM_ID]
        .iter()
        .any(|&key| namespace.annotations.contains_key(key))
    {
        let decider = format!("{}/{}", decider.kind, decider.name);
        plan.warnings.push(Warning::AnnotationsIgnored(decider));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests;
