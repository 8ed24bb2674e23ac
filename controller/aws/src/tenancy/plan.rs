//! The credentials of a cluster: the first credentials, and the chain of roles that follows them.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use kubelet_attestation::secret::Secret;
use sha2::{Digest as _, Sha256};

use super::allowed_namespaces::Permission;
use super::identity::IdentityRef;
use super::role::Role;
use crate::credentials::CredentialsKey;

/// The path to the credentials of one cluster.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The first credentials.
    pub root: Root,
    /// The roles to assume, in order. Each role is assumed with the credentials of the previous role.
    pub roles: Vec<Role>,
    /// The identities. The cluster's own identity is first. Empty if the plan does not come from Cluster API Provider
    /// AWS's identities.
    pub chain: Vec<Link>,
    /// Warnings for the owner. They do not block the cluster.
    pub warnings: Vec<Warning>,
}

/// An identity in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The identity.
    pub identity: IdentityRef,
    /// The rule that allows the cluster's namespace to use the identity.
    pub permission: Permission,
}

/// The first credentials of a plan.
#[derive(Debug, Clone)]
pub enum Root {
    /// The controller's own credentials.
    Controller,
    /// An access key.
    Static(Arc<AccessKey>),
    /// A role that can be assumed with the token of a service account.
    ServiceAccount(Box<ServiceAccount>),
}

/// A long-lived access key, or temporary credentials that another system renews.
#[derive(derive_more::Debug)]
pub struct AccessKey {
    /// The access key ID, which is not secret.
    pub id: String,
    /// The secret access key.
    pub secret: Secret<String>,
    /// The session token of temporary credentials.
    pub session_token: Option<Secret<String>>,
}

/// A service account, and the role that can be assumed with its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// The namespace of the service account.
    pub namespace: String,
    /// The name of the service account.
    pub name: String,
    /// The audiences of the token.
    pub audiences: Vec<String>,
    /// The requested validity of the token.
    pub token_validity: Duration,
    /// The role.
    pub role: Role,
}

/// A warning for the owner of an identity or a cluster. It does not block the cluster.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Warning {
    /// The session duration is longer than STS allows.
    #[display(
        "durationSeconds of {_0} exceeds 1 hour: STS does not allow this for a role with temporary source credentials"
    )]
    DurationShortened(IdentityRef),
    /// A reference has a namespace, which is ignored (Cluster API multi-tenancy contract).
    #[display("identityRef has a namespace, which is ignored: AWS identities have no namespace")]
    NamespaceIgnored,
    /// The namespace has annotations of AWS Controllers for Kubernetes, which are ignored here.
    #[display(
        "the namespace has annotations of AWS Controllers for Kubernetes, which are ignored: the identityRef of {_0} is \
         used"
    )]
    AnnotationsIgnored(String),
}

/// The key with which this process computes digests of secrets, so that digests from different processes cannot be
/// compared.
#[derive(derive_more::Debug, Clone)]
#[debug("DigestKey(..)")]
pub struct DigestKey(hmac::Key);

impl DigestKey {
    /// Creates a random key. `None` if the system did not provide random bytes.
    pub fn random() -> Option<Self> {
        let mut random = [0; 32];
        aws_lc_rs::rand::fill(&mut random).ok()?;
        Some(Self::new(&random))
    }

    /// Creates the key from these random bytes.
    pub fn new(random: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, random))
    }
}

impl Plan {
    /// Creates a plan for the controller's own credentials.
    pub(super) fn controller() -> Self {
        Self {
            root: Root::Controller,
            roles: Vec::new(),
            chain: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Creates a plan for a role that is assumed with the controller's own credentials.
    pub(super) fn of_controller(mut role: Role) -> Self {
        role.chain();
        Self {
            roles: vec![role],
            ..Self::controller()
        }
    }

    /// Whether this plan exists only because of `--allow-controller-identity-fallback`.
    pub fn is_fallback(&self) -> bool {
        matches!(self.root, Root::Controller) && self.roles.is_empty() && self.chain.is_empty()
    }

    /// The account of the credentials. `None` if only AWS can report it.
    pub fn account(&self) -> Option<&str> {
        let role = match (&self.root, self.roles.last()) {
            (_, Some(role)) => role,
            (Root::ServiceAccount(account), None) => &account.role,
            (Root::Controller | Root::Static(_), None) => return None,
        };
        Some(role.arn.account())
    }

    /// The digests of the root's credentials, and of the credentials after each role. Credentials with the same digest
    /// can be shared. `sts_region` is the STS region.
    ///
    /// The digests depend only on the parameters of the AWS calls, and not on names, labels or versions of objects. A
    /// digest does not reveal a secret.
    pub fn digests(&self, key: &DigestKey, sts_region: &str) -> Vec<CredentialsKey> {
        let root = self.root.digest(key, sts_region);
        let mut digests = vec![root];
        let mut source = root;
        for role in &self.roles {
            source = with_role(Fields::of("role").add(&source.0), role, sts_region);
            digests.push(source);
        }
        digests
            .into_iter()
            .map(|Digest(digest)| CredentialsKey::new(digest))
            .collect()
    }
}

/// A digest of credentials.
#[derive(Clone, Copy)]
struct Digest([u8; 32]);

impl Root {
    fn digest(&self, key: &DigestKey, sts_region: &str) -> Digest {
        match self {
            Self::Controller => Fields::of("controller").finish(),
            Self::Static(access_key) => {
                let token = access_key.session_token.as_ref().map(Secret::expose);
                let fields = Fields::of("static")
                    .add(access_key.id.as_bytes())
                    .add(access_key.secret.expose().as_bytes())
                    .add_optional(token.map(String::as_str));
                fields.finish_with(key)
            }
            Self::ServiceAccount(account) => {
                let mut fields = Fields::of("service account")
                    .add(account.namespace.as_bytes())
                    .add(account.name.as_bytes())
                    .add(&account.token_validity.as_secs().to_be_bytes());
                for audience in &account.audiences {
                    fields = fields.add(audience.as_bytes());
                }
                with_role(fields, &account.role, sts_region)
            }
        }
    }
}

fn with_role(fields: Fields, role: &Role, sts_region: &str) -> Digest {
    let mut fields = fields
        .add(role.arn.to_string().as_bytes())
        .add(role.session_name.as_bytes())
        .add(&role.duration.as_secs().to_be_bytes())
        .add_optional(role.external_id.as_deref())
        .add_optional(role.inline_policy.as_deref())
        .add(sts_region.as_bytes());
    for arn in &role.policy_arns {
        fields = fields.add(arn.as_bytes());
    }
    fields.finish()
}

/// Length-prefixed fields, so that different lists of fields never have the same hash input.
struct Fields(zeroize::Zeroizing<Vec<u8>>);

impl Fields {
    fn of(kind: &str) -> Self {
        Self(zeroize::Zeroizing::new(Vec::with_capacity(1024)))
            .add(b"node-attestation v1")
            .add(kind.as_bytes())
    }

    fn add(mut self, field: &[u8]) -> Self {
        self.0
            .extend(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
        self.0.extend_from_slice(field);
        self
    }

    /// Adds an optional field. A missing text and an empty text have different hash inputs.
    fn add_optional(self, field: Option<&str>) -> Self {
        match field {
            None => self.add(&[0]),
            Some(field) => self.add(&[1]).add(field.as_bytes()),
        }
    }

    fn finish(self) -> Digest {
        Digest(Sha256::digest(&*self.0).into())
    }

    fn finish_with(self, key: &DigestKey) -> Digest {
        let tag = hmac::sign(&key.0, &self.0);
        Digest(Sha256::digest(tag.as_ref()).into())
    }
}

#[cfg(test)]
mod tests;
