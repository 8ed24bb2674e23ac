//! The identity chain in Cluster API Provider AWS: from the cluster's identity through its sources to the first
//! credentials.

use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_attestation::names::is_dns_subdomain;
use node_attestation_core::crd::AWSServiceAccountIdentitySpec;

use super::allowed_namespaces::{AllowedNamespaces, Permission};
use super::error::ResolutionError;
use super::identity::{
    CONTROLLER_IDENTITY_NAME, IdentityKind, IdentityRef, MAX_DEPTH, RawIdentityRef, RoleIdentity,
};
use super::objects::{Objects, Readable};
use super::plan::{Link, Plan, Root, ServiceAccount, Warning};
use super::role::{InvalidRoleSpec, Role, RoleSpec};
use crate::partition;

/// The minimum token validity that Kubernetes allows, in seconds.
const MIN_TOKEN_VALIDITY: i64 = 600;

/// The namespace and region of the cluster for which an identity is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClusterPlace<'a> {
    /// The namespace of the cluster.
    pub namespace: &'a str,
    /// Its region. `None` if no object specifies it.
    pub region: Option<&'a str>,
}

impl IdentityRef {
    /// Returns the identity to which a reference refers.
    ///
    /// # Errors
    ///
    /// Returns [`ResolutionError::UnsupportedKind`] if the kind is not supported.
    pub fn parse(reference: &RawIdentityRef) -> Result<Self, ResolutionError> {
        let kind = IdentityKind::named(&reference.kind);
        let unsupported = || ResolutionError::UnsupportedKind(reference.kind.clone());
        Ok(Self {
            kind: kind.ok_or_else(unsupported)?,
            name: reference.name.clone(),
        })
    }
}

/// Resolves the plan for a cluster that uses an identity.
///
/// Each identity in the chain must permit the cluster's namespace before its other fields are read. The identities that
/// permit the namespace are added to `chain`, which must be empty.
///
/// # Errors
///
/// Returns the first error, in order from the cluster's identity to the last source.
pub(super) fn resolve(
    objects: &Objects,
    identity: IdentityRef,
    tenant: ClusterPlace<'_>,
    chain: &mut Vec<Link>,
) -> Result<Plan, ResolutionError> {
    let mut roles: Vec<(IdentityRef, Role)> = Vec::new();
    let mut next = identity;
    let root = loop {
        enter(chain, &next)?;
        let permit = |allowed: Option<&AllowedNamespaces>| {
            let is_source = !chain.is_empty();
            permitted(objects, &next, allowed, tenant.namespace, is_source)
        };
        let (step, link) = match next.kind {
            IdentityKind::Controller => {
                if next.name != CONTROLLER_IDENTITY_NAME {
                    return Err(ResolutionError::NotSingleton(next.name));
                }
                let found = found(&next, objects.controllers.get(&next.name), permit)?;
                let link = permit(found.allowed_namespaces.as_ref())?;
                (Step::Root(Root::Controller), link)
            }
            IdentityKind::Static => {
                let found = found(&next, objects.statics.get(&next.name), permit)?;
                let link = permit(found.allowed_namespaces.as_ref())?;
                (
                    Step::Root(access_key(objects, &next, &found.secret_ref)?),
                    link,
                )
            }
            IdentityKind::Role => {
                let found = found(&next, objects.roles.get(&next.name), permit)?;
                let link = permit(found.allowed_namespaces.as_ref())?;
                (assumed(&next, found)?, link)
            }
            IdentityKind::ServiceAccount => {
                let link = Link {
                    identity: next.clone(),
                    permission: Permission::OwnNamespace,
                };
                let permit = |_: Option<&AllowedNamespaces>| Ok(link.clone());
                let account = objects.service_accounts.get(tenant.namespace, &next.name);
                let found = found(&next, account, permit)?;
                (
                    Step::Root(service_account(&next, found, tenant.namespace)?),
                    link,
                )
            }
        };
        chain.push(link);
        match step {
            Step::Root(root) => break root,
            Step::Role(role, source) => {
                roles.push((next, role));
                next = source;
            }
        }
    };
    roles.reverse();
    let (roles, warnings) = chained(&root, roles);
    let plan = Plan {
        root,
        roles,
        chain: chain.clone(),
        warnings,
    };
    if let Some(region) = tenant.region {
        plan.check_partition(region)?;
    }
    Ok(plan)
}

/// The part of a plan that comes from one identity.
enum Step {
    Root(Root),
    Role(Role, IdentityRef),
}

fn enter(chain: &[Link], next: &IdentityRef) -> Result<(), ResolutionError> {
    let path = || {
        let before = chain.iter().map(|link| link.identity.clone());
        before.chain([next.clone()]).collect()
    };
    if chain.iter().any(|link| link.identity == *next) {
        return Err(ResolutionError::ChainLoop(path()));
    }
    if chain.len() >= MAX_DEPTH {
        return Err(ResolutionError::ChainTooDeep(path()));
    }
    Ok(())
}

/// Returns an object that can be parsed. A parse error is reported only to namespaces that are allowed to use the
/// object.
fn found<'a, T>(
    identity: &IdentityRef,
    object: Option<&'a Readable<T>>,
    permit: impl Fn(Option<&AllowedNamespaces>) -> Result<Link, ResolutionError>,
) -> Result<&'a T, ResolutionError> {
    let invalid = |detail: &str| ResolutionError::IdentityInvalid {
        identity: identity.clone(),
        detail: detail.to_owned(),
    };
    match object {
        Some(Ok(object)) => Ok(object),
        Some(Err(unreadable)) => Err(match &unreadable.allowed_namespaces {
            Some(allowed) => {
                permit(allowed.as_ref())?;
                invalid(&unreadable.detail)
            }
            None => invalid("spec.allowedNamespaces is malformed"),
        }),
        None => Err(ResolutionError::IdentityNotFound {
            identity: identity.clone(),
        }),
    }
}

fn permitted(
    objects: &Objects,
    identity: &IdentityRef,
    allowed: Option<&AllowedNamespaces>,
    namespace: &str,
    is_source: bool,
) -> Result<Link, ResolutionError> {
    let labels = objects.namespaces.get(namespace).map(|found| &found.labels);
    let permission = allowed.map(|allowed| allowed.permits(namespace, labels));
    let permission = permission
        .transpose()
        .map_err(|invalid| ResolutionError::BadSelector {
            identity: identity.clone(),
            invalid,
        })?;
    let identity = identity.clone();
    let Some(permission) = permission.flatten() else {
        let namespace = namespace.to_owned();
        return Err(if is_source {
            ResolutionError::SourceUsageUnauthorized {
                identity,
                namespace,
            }
        } else {
            ResolutionError::UsageUnauthorized {
                identity,
                namespace,
            }
        });
    };
    Ok(Link {
        identity,
        permission,
    })
}

fn access_key(
    objects: &Objects,
    identity: &IdentityRef,
    name: &str,
) -> Result<Root, ResolutionError> {
    // A name that contains a slash would change the path in the API server.
    let key = Some(name).filter(|name| is_dns_subdomain(name));
    match key.and_then(|name| objects.access_keys.get(name)) {
        Some(Ok(key)) => Ok(Root::Static(key.clone())),
        Some(Err(missing)) => Err(ResolutionError::SecretMalformed {
            identity: identity.clone(),
            name: name.to_owned(),
            missing: missing.clone(),
        }),
        None => Err(ResolutionError::SecretNotFound {
            identity: identity.clone(),
            namespace: objects.capa_namespace.clone(),
            name: name.to_owned(),
        }),
    }
}

fn assumed(identity: &IdentityRef, found: &RoleIdentity) -> Result<Step, ResolutionError> {
    let source = found.source_identity_ref.as_ref();
    let missing = || ResolutionError::MissingSource(identity.clone());
    let source = IdentityRef::parse(source.ok_or_else(missing)?)?;
    let role = Role::new(&found.role, &identity.name);
    let role = role.map_err(|invalid| invalid_role(identity, invalid))?;
    Ok(Step::Role(role, source))
}

fn invalid_role(identity: &IdentityRef, invalid: InvalidRoleSpec) -> ResolutionError {
    ResolutionError::InvalidRole {
        identity: identity.clone(),
        invalid,
    }
}

fn service_account(
    identity: &IdentityRef,
    found: &AWSServiceAccountIdentitySpec,
    namespace: &str,
) -> Result<Root, ResolutionError> {
    let invalid = |detail: &str| ResolutionError::IdentityInvalid {
        identity: identity.clone(),
        detail: detail.to_owned(),
    };
    let audiences = found.audiences.clone();
    let is_audience = |audience: &String| !audience.is_empty();
    ensure!(
        !audiences.is_empty() && audiences.iter().all(is_audience),
        invalid("an audience is empty")
    );
    let Some(token_validity) =
        Some(found.expiration_seconds).filter(|seconds| *seconds >= MIN_TOKEN_VALIDITY)
    else {
        return Err(invalid("expirationSeconds is less than 600"));
    };
    let token_validity = Duration::from_secs(token_validity.unsigned_abs());
    let spec = RoleSpec {
        role_arn: found.role_arn.clone(),
        session_name: found.session_name.clone(),
        duration_seconds: found.duration_seconds,
        inline_policy: found.inline_policy.clone(),
        policy_arns: Some(found.policy_arns.clone()),
        external_id: String::new(),
    };
    let role = Role::new(&spec, &identity.name);
    Ok(Root::ServiceAccount(Box::new(ServiceAccount {
        namespace: namespace.to_owned(),
        name: identity.name.clone(),
        audiences,
        token_validity,
        role: role.map_err(|invalid| invalid_role(identity, invalid))?,
    })))
}

/// Shortens the sessions whose source is temporary: a role, a session token, or the controller's own credentials, which
/// are rarely a long-lived access key.
fn chained(root: &Root, roles: Vec<(IdentityRef, Role)>) -> (Vec<Role>, Vec<Warning>) {
    let mut is_temporary = match root {
        Root::Controller | Root::ServiceAccount(_) => true,
        Root::Static(key) => key.session_token.is_some(),
    };
    let mut warnings = Vec::new();
    let roles = roles.into_iter().map(|(identity, mut role)| {
        if is_temporary && role.chain() {
            warnings.push(Warning::DurationShortened(identity));
        }
        is_temporary = true;
        role
    });
    (roles.collect(), warnings)
}

impl Plan {
    /// Checks that every role belongs to the partition of the region.
    ///
    /// # Errors
    ///
    /// Returns [`ResolutionError::PartitionMismatch`] if a role belongs to a different partition.
    pub(crate) fn check_partition(&self, region: &str) -> Result<(), ResolutionError> {
        let Some(partition) = partition::of_region(region).map(|partition| partition.name) else {
            return Ok(());
        };
        let of_account = match &self.root {
            Root::ServiceAccount(account) => Some(&account.role),
            Root::Controller | Root::Static(_) => None,
        };
        let mut roles = self.roles.iter().chain(of_account);
        match roles.find(|role| role.arn.partition() != partition) {
            None => Ok(()),
            Some(role) => Err(ResolutionError::PartitionMismatch {
                role: role.arn.to_string(),
                partition,
                region: region.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
