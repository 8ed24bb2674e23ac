//! The object that names a cluster's identity, and the order of precedence.

use serde::Deserialize;

use super::allowed_namespaces::Labels;
use super::carm::{self, CarmGates};
use super::chain::{self, ClusterPlace};
use super::error::ResolutionError;
use super::identity::{IdentityKind, IdentityRef, RawIdentityRef};
use super::objects::{Namespace, OWNER_ACCOUNT_ID, Objects, TEAM_ID};
use super::plan::{Plan, Warning};
use super::selected_role;

/// The settings of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenancySettings {
    /// The order of precedence for clusters that Cluster API Provider AWS did not create.
    pub ack: Ack,
    /// Clusters for which nothing names an identity get the controller's own credentials.
    pub allow_controller_identity_fallback: bool,
}

/// AWS Controllers for Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// There are none.
    #[default]
    Off,
    /// Annotations of namespaces, and config maps.
    Carm(CarmGates),
    /// `IAMRoleSelector`.
    RoleSelectors,
}

/// A Cluster of Cluster API, as far as its identity depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// `spec.infrastructureRef`.
    pub infrastructure: Option<ObjectRef>,
    /// `spec.controlPlaneRef`.
    pub control_plane: Option<ObjectRef>,
}

/// A reference to an object in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// `spec` of an object that names an identity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Infrastructure {
    /// The identity; `None` for the controller's.
    pub identity_ref: Option<RawIdentityRef>,
    /// The cluster's region.
    pub region: Option<String>,
}

impl Cluster {
    /// The kinds of objects whose `spec.identityRef` counts: the last as `spec.infrastructureRef`, the others as
    /// `spec.controlPlaneRef`.
    pub const DECIDERS: [&str; 3] = ["AWSManagedControlPlane", "ROSAControlPlane", "AWSCluster"];

    /// The object whose `spec.identityRef` decides: a managed control plane, or the `AWSCluster`. `None` if Cluster API
    /// Provider AWS did not create the cluster.
    pub fn decider(&self) -> Option<&ObjectRef> {
        let [managed, rosa, own] = Self::DECIDERS;
        let is_managed = |object: &&ObjectRef| [managed, rosa].contains(&&*object.kind);
        let is_own = |object: &&ObjectRef| object.kind == own;
        let managed = self.control_plane.as_ref().filter(is_managed);
        managed.or_else(|| self.infrastructure.as_ref().filter(is_own))
    }
}

/// The plan of a cluster. `infrastructure` is the object of [`Cluster::decider`]; `service_account` is the identity that
/// the cluster's `KubeletAuthentication` names.
///
/// # Errors
///
/// The credentials cannot be told. Nothing leads to the controller's own, unless the operator or an identity says so.
pub fn resolve(
    objects: &Objects,
    cluster: &Cluster,
    infrastructure: Option<&Infrastructure>,
    service_account: Option<&str>,
    settings: TenancySettings,
) -> Result<Plan, ResolutionError> {
    let default = Namespace::default();
    let namespace = objects
        .namespaces
        .get(&cluster.namespace)
        .unwrap_or(&default);
    let tenant = ClusterPlace {
        namespace: &cluster.namespace,
        region: infrastructure.and_then(|found| found.region.as_deref()),
    };
    if let Some(name) = service_account {
        let identity = IdentityRef {
            kind: IdentityKind::ServiceAccount,
            name: name.to_owned(),
        };
        return chain::resolve(objects, identity, tenant);
    }
    if let Some(decider) = cluster.decider() {
        let found = infrastructure.ok_or_else(|| ResolutionError::InfrastructureNotFound {
            kind: decider.kind.clone(),
            name: decider.name.clone(),
            namespace: cluster.namespace.clone(),
        })?;
        return of_provider(objects, decider, found, tenant, namespace);
    }
    match settings.ack {
        Ack::Carm(gates) => {
            let not_found = || ResolutionError::NamespaceNotFound(cluster.namespace.clone());
            let namespace = objects.namespaces.get(&cluster.namespace);
            let namespace = namespace.ok_or_else(not_found)?;
            if let Some(plan) = carm::resolve(objects, &cluster.namespace, namespace, gates)? {
                return Ok(plan);
            }
        }
        Ack::RoleSelectors => {
            let plan = selected_role::resolve(objects, &cluster.namespace, &cluster.labels);
            let is_fallback = settings.allow_controller_identity_fallback
                && matches!(plan, Err(ResolutionError::NoRoleSelector));
            if !is_fallback {
                return plan;
            }
        }
        Ack::Off => {}
    }
    if settings.allow_controller_identity_fallback {
        return Ok(Plan::controller());
    }
    Err(ResolutionError::IdentityNotNamed(match settings.ack {
        Ack::Carm(_) => {
            "its namespace has no annotation of AWS Controllers for Kubernetes that counts"
        }
        Ack::Off | Ack::RoleSelectors => "it is not a cluster of Cluster API Provider AWS",
    }))
}

fn of_provider(
    objects: &Objects,
    decider: &ObjectRef,
    found: &Infrastructure,
    tenant: ClusterPlace<'_>,
    namespace: &Namespace,
) -> Result<Plan, ResolutionError> {
    let identity = match &found.identity_ref {
        Some(reference) => IdentityRef::parse(reference)?,
        None => IdentityRef::controller(),
    };
    let mut plan = chain::resolve(objects, identity, tenant)?;
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
