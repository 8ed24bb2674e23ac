//! The objects that a resolution reads, in their last known state.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kubelet_attestation::names::is_dns_subdomain;
use kubelet_attestation::secret::Secret;
use node_attestation_core::crd::AWSServiceAccountIdentitySpec;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::allowed_namespaces::{AllowedNamespaces, Labels};
use super::identity::{
    ControllerIdentity, IdentityKind, RoleIdentity, RoleReferences, StaticIdentity,
};
use super::plan::{AccessKey, Plan};
use super::role_selector::RoleSelector;
use crate::bounded::{Bounded, Kept, NamespaceLimits, of_memory};

/// The keys in the Secret for an `AWSClusterStaticIdentity`, from the code of Cluster API Provider AWS.
const ACCESS_KEY_ID: &str = "AccessKeyID";
const SECRET_ACCESS_KEY: &str = "SecretAccessKey";
const SESSION_TOKEN: &str = "SessionToken";

/// The annotation on a namespace with its account.
pub(super) const OWNER_ACCOUNT_ID: &str = "services.k8s.aws/owner-account-id";

/// The annotation on a namespace with its team.
pub(super) const TEAM_ID: &str = "services.k8s.aws/team-id";

/// The `ConfigMap` with the role for each account.
pub const ACCOUNT_MAP: &str = "ack-role-account-map";

/// The `ConfigMap` with the role for each team.
pub const TEAM_MAP: &str = "ack-role-team-map";

/// The limits on the `AWSServiceAccountIdentity` objects in one namespace, which its tenant can create. An object can
/// be 40 KB large, but is usually only a few hundred bytes. A namespace rarely contains more than one object for each
/// of its Clusters.
pub const MAX_SERVICE_ACCOUNTS: NamespaceLimits = NamespaceLimits {
    objects: 1000,
    bytes: 8 * 1024 * 1024,
};

/// The container's memory limit divided by this number is the limit for the `AWSServiceAccountIdentity` objects in all
/// namespaces: 16 MiB of 1 GiB.
const ACCOUNTS_PART: usize = 64;

/// The reason why an `AWSServiceAccountIdentity` that exceeds a size limit is not used.
const TOO_LARGE: &str = "the AWSServiceAccountIdentity objects in the namespace exceed 8 MiB in total, or their \
    part of the memory for all namespaces; delete some of these objects, and then change this object, so that the \
    controller reads it again";

/// A parsed object, or the reason why it cannot be parsed.
pub type Readable<T> = Result<T, Unreadable>;

/// An object that cannot be parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Unreadable {
    /// The error, which can quote a part of the object.
    pub detail: String,
    /// `spec.allowedNamespaces`, if it can be parsed. Only conditions in these namespaces contain the detail.
    pub allowed_namespaces: Option<Option<AllowedNamespaces>>,
}

/// The objects that a resolution reads.
///
/// # Guarantees
///
/// The cost of a lookup does not depend on the number of identities.
#[derive(Debug, Default)]
pub struct Objects {
    /// `AWSClusterControllerIdentity`, by name.
    pub controllers: HashMap<String, Readable<ControllerIdentity>>,
    /// `AWSClusterStaticIdentity`, by name.
    pub statics: HashMap<String, Readable<StaticIdentity>>,
    /// `AWSClusterRoleIdentity`, by name.
    pub roles: HashMap<String, Readable<RoleIdentity>>,
    /// `AWSServiceAccountIdentity`, keyed by namespace and name.
    pub service_accounts: ServiceAccounts,
    /// Namespaces, by name.
    pub namespaces: HashMap<String, Namespace>,
    /// The namespace of Cluster API Provider AWS, which contains the Secrets.
    pub capa_namespace: String,
    /// The Secrets to which identities refer, keyed by name.
    pub access_keys: HashMap<String, Result<Arc<AccessKey>, MissingKeys>>,
    /// The `ConfigMap` of AWS Controllers for Kubernetes that contains the role for each account. `None` if it does not
    /// exist.
    pub account_map: Option<BTreeMap<String, String>>,
    /// The `ConfigMap` of AWS Controllers for Kubernetes that contains the role for each team. `None` if it does not
    /// exist.
    pub team_map: Option<BTreeMap<String, String>>,
    /// `IAMRoleSelector`, by name.
    pub role_selectors: BTreeMap<String, Readable<RoleSelector>>,
}

/// `AWSServiceAccountIdentity`, keyed by namespace and name.
#[derive(Debug)]
pub struct ServiceAccounts(Bounded<(String, String), Readable<AWSServiceAccountIdentitySpec>>);

/// The kept objects, keyed by namespace and name.
type KeptAccounts = BTreeMap<(String, String), Kept<Readable<AWSServiceAccountIdentitySpec>>>;

impl Default for ServiceAccounts {
    fn default() -> Self {
        Self(Bounded::new(MAX_SERVICE_ACCOUNTS, of_memory(ACCOUNTS_PART)))
    }
}

impl ServiceAccounts {
    /// The identity with this name.
    pub fn get(
        &self,
        namespace: &str,
        name: &str,
    ) -> Option<&Readable<AWSServiceAccountIdentitySpec>> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Whether this identity was omitted, because its namespace has too many.
    pub fn has_omitted(&self, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        self.0.has_omitted(namespace, &key)
    }

    /// Returns all identities, so that the caller can remove some of them.
    pub(crate) fn entries_mut(&mut self) -> &mut KeptAccounts {
        self.0.entries_mut()
    }
}

/// The metadata of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespace {
    /// The labels of the namespace.
    pub labels: Labels,
    /// The annotations of the namespace.
    pub annotations: BTreeMap<String, String>,
}

impl Objects {
    /// Replaces an identity. Only an `AWSServiceAccountIdentity` has a namespace, and is therefore limited.
    ///
    /// Returns the identity that is not kept, either the previous one or this one, so that the caller can drop it after
    /// it releases a lock.
    pub fn put_identity(
        &mut self,
        namespace: &str,
        name: &str,
        identity: Identity,
    ) -> Vec<Identity> {
        let owned = name.to_owned();
        let former = match identity {
            Identity::Controller(found) => {
                let former = self.controllers.insert(owned, found);
                former.map(Identity::Controller)
            }
            Identity::Static(found) => self.statics.insert(owned, found).map(Identity::Static),
            Identity::Role(found) => self.roles.insert(owned, found).map(Identity::Role),
            Identity::ServiceAccount { found, bytes } => {
                let key = (namespace.to_owned(), owned);
                let bytes = bytes + namespace.len() + name.len();
                let dropped = self
                    .service_accounts
                    .0
                    .put(namespace, key, (found, bytes), || {
                        Err(Unreadable {
                            detail: TOO_LARGE.to_owned(),
                            allowed_namespaces: Some(None),
                        })
                    });
                return dropped.into_iter().map(Identity::not_kept).collect();
            }
        };
        former.into_iter().collect()
    }

    /// Replaces an `IAMRoleSelector` with this `spec`, as JSON. `None` removes the selector. Returns whether the `spec`
    /// can be parsed.
    pub fn put_role_selector(&mut self, name: &str, spec: Option<&str>) -> bool {
        let Some(spec) = spec else {
            self.role_selectors.remove(name);
            return true;
        };
        let found = readable(spec);
        let is_readable = found.is_ok();
        self.role_selectors.insert(name.to_owned(), found);
        is_readable
    }

    /// Replaces the data in a `ConfigMap` of AWS Controllers for Kubernetes. `None` removes it.
    pub fn put_config_map(&mut self, name: &str, data: Option<BTreeMap<String, String>>) {
        match name {
            ACCOUNT_MAP => self.account_map = data,
            TEAM_MAP => self.team_map = data,
            _ => {}
        }
    }

    /// Returns the names of the Secrets to which identities refer, except names that are invalid for a Secret.
    pub fn secrets(&self) -> BTreeSet<String> {
        let identities = self.statics.values().flatten();
        let names = identities.map(|identity| identity.secret_ref.clone());
        names.filter(|name| is_dns_subdomain(name)).collect()
    }

    /// The name of the Secret that contains a plan's first credentials.
    pub fn secret_of(&self, plan: &Plan) -> Option<&str> {
        let last = &plan.chain.last()?.identity;
        let identity = (last.kind == IdentityKind::Static).then(|| self.statics.get(&last.name))?;
        identity?
            .as_ref()
            .ok()
            .map(|identity| &*identity.secret_ref)
    }

    /// Removes an identity, and returns it.
    pub fn remove_identity(
        &mut self,
        kind: IdentityKind,
        namespace: &str,
        name: &str,
    ) -> Option<Identity> {
        match kind {
            IdentityKind::Controller => self.controllers.remove(name).map(Identity::Controller),
            IdentityKind::Static => self.statics.remove(name).map(Identity::Static),
            IdentityKind::Role => self.roles.remove(name).map(Identity::Role),
            IdentityKind::ServiceAccount => {
                let key = (namespace.to_owned(), name.to_owned());
                let former = self.service_accounts.0.remove(namespace, &key);
                former.map(Identity::not_kept)
            }
        }
    }
}

/// An identity, with its parsed `spec`.
#[derive(Debug)]
pub enum Identity {
    /// `AWSClusterControllerIdentity`.
    Controller(Readable<ControllerIdentity>),
    /// `AWSClusterStaticIdentity`.
    Static(Readable<StaticIdentity>),
    /// `AWSClusterRoleIdentity`.
    Role(Readable<RoleIdentity>),
    /// `AWSServiceAccountIdentity`.
    ServiceAccount {
        /// The `spec` of the identity.
        found: Readable<AWSServiceAccountIdentitySpec>,
        /// The size of the identity in memory, in bytes.
        bytes: usize,
    },
}

impl Identity {
    /// Creates an identity that is only dropped, and whose size is therefore not needed.
    fn not_kept(found: Readable<AWSServiceAccountIdentitySpec>) -> Self {
        Self::ServiceAccount { found, bytes: 0 }
    }

    fn service_account(found: Readable<AWSServiceAccountIdentitySpec>) -> Self {
        let texts: usize = match &found {
            Ok(spec) => {
                let texts = [&spec.role_arn, &spec.session_name, &spec.inline_policy];
                let lists = spec.policy_arns.iter().chain(&spec.audiences);
                let texts = texts.into_iter().chain(lists);
                texts.map(|text| size_of_val(text) + text.len()).sum()
            }
            Err(unreadable) => unreadable.detail.len(),
        };
        let bytes = size_of_val(&found) + texts;
        Self::ServiceAccount { found, bytes }
    }

    /// Parses the `spec` of an identity from JSON.
    pub fn parse(kind: IdentityKind, spec: &str) -> Self {
        match kind {
            IdentityKind::Controller => Self::Controller(readable(spec)),
            IdentityKind::Static => Self::Static(readable(spec)),
            IdentityKind::Role => Self::Role(role_identity(spec)),
            IdentityKind::ServiceAccount => {
                // Only its own namespace uses the identity, so a list of namespaces is not kept.
                let found = readable(spec).map_err(|unreadable| Unreadable {
                    allowed_namespaces: unreadable.allowed_namespaces.map(|_| None),
                    ..unreadable
                });
                Self::service_account(found)
            }
        }
    }

    /// Whether the `spec` can be parsed.
    pub fn is_readable(&self) -> bool {
        match self {
            Self::Controller(found) => found.is_ok(),
            Self::Static(found) => found.is_ok(),
            Self::Role(found) => found.is_ok(),
            Self::ServiceAccount { found, .. } => found.is_ok(),
        }
    }
}

/// The field that determines which namespaces are allowed to get the parse error of an identity.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Permitted {
    allowed_namespaces: Option<AllowedNamespaces>,
}

fn readable<T: DeserializeOwned>(spec: &str) -> Readable<T> {
    serde_json::from_str(spec).map_err(|error| {
        let allowed: Result<Option<Permitted>, _> = serde_json::from_str(spec);
        Unreadable {
            detail: error.to_string(),
            allowed_namespaces: allowed
                .ok()
                .map(|permitted| permitted.unwrap_or_default().allowed_namespaces),
        }
    })
}

fn role_identity(spec: &str) -> Readable<RoleIdentity> {
    let RoleReferences {
        allowed_namespaces,
        source_identity_ref,
    } = readable(spec)?;
    Ok(RoleIdentity {
        allowed_namespaces,
        role: readable(spec)?,
        source_identity_ref,
    })
}

/// The namespace annotations that the controller reads.
const ANNOTATIONS: [&str; 2] = [OWNER_ACCOUNT_ID, TEAM_ID];

impl Namespace {
    /// Creates a namespace with these labels, and with the annotations that the controller reads.
    pub fn new(labels: &Labels, annotations: &BTreeMap<String, String>) -> Self {
        let annotations = annotations.iter();
        let kept = annotations.filter(|(key, _)| ANNOTATIONS.contains(&&***key));
        Self {
            labels: labels.clone(),
            annotations: kept
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        }
    }
}

/// The keys that are missing in a Secret, or whose values are empty or invalid for AWS.
pub type MissingKeys = Vec<&'static str>;

/// Parses the access key in the data of a Secret.
///
/// Values must be printable ASCII without white space. A line break, which `echo` writes, is invalid in an HTTP header,
/// and would make the SDK panic.
///
/// # Errors
///
/// Returns an error if a key is missing, or if its value is empty or invalid. The error does not contain the values.
pub fn access_key(data: &BTreeMap<&str, &[u8]>) -> Result<AccessKey, MissingKeys> {
    // An empty value counts as missing.
    let value = |key: &'static str| match data.get(key).copied().unwrap_or_default() {
        [] => Ok(None),
        value if value.iter().all(u8::is_ascii_graphic) => {
            Ok(Some(String::from_utf8_lossy(value).into_owned()))
        }
        _ => Err(key),
    };
    let required = |key: &'static str| value(key).and_then(|value| value.ok_or(key));
    match (
        required(ACCESS_KEY_ID),
        required(SECRET_ACCESS_KEY),
        value(SESSION_TOKEN),
    ) {
        (Ok(id), Ok(secret), Ok(session_token)) => Ok(AccessKey {
            id,
            secret: Secret::new(secret),
            session_token: session_token.map(Secret::new),
        }),
        (id, secret, token) => {
            let invalid = [id.err(), secret.err(), token.err()];
            Err(invalid.into_iter().flatten().collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data<'a>(data: &[(&'a str, &'a str)]) -> BTreeMap<&'a str, &'a [u8]> {
        let data = data.iter();
        data.map(|&(key, value)| (key, value.as_bytes())).collect()
    }

    #[test]
    fn an_access_key_has_an_id_a_secret_and_an_optional_token() {
        let long_lived = data(&[("AccessKeyID", "AKIA1"), ("SecretAccessKey", "s3cret")]);
        let key = access_key(&long_lived).unwrap();
        assert_eq!((&*key.id, &**key.secret.expose()), ("AKIA1", "s3cret"));
        assert!(key.session_token.is_none());

        let mut temporary = long_lived;
        temporary.extend(data(&[("SessionToken", "t0ken")]));
        let key = access_key(&temporary).unwrap();
        assert_eq!(key.session_token.unwrap().expose(), "t0ken");
    }

    #[test]
    fn missing_and_empty_keys_are_named_without_values() {
        for (given, missing) in [
            (
                &[("accessKeyID", "AKIA1"), ("SecretAccessKey", "s")][..],
                &["AccessKeyID"][..],
            ),
            (
                &[("AccessKeyID", "AKIA1"), ("SecretAccessKey", "")],
                &["SecretAccessKey"],
            ),
            (
                &[("AccessKeyID", ""), ("secretAccessKey", "s")],
                &["AccessKeyID", "SecretAccessKey"],
            ),
            (&[], &["AccessKeyID", "SecretAccessKey"]),
        ] {
            assert_eq!(access_key(&data(given)).unwrap_err(), missing, "{given:?}");
        }
    }

    #[test]
    fn an_access_key_value_with_invalid_characters_is_refused() {
        let valid = [
            ("AccessKeyID", "AKIA1"),
            ("SecretAccessKey", "s3/cret+="),
            ("SessionToken", "t0/ken+=="),
        ];
        assert!(access_key(&data(&valid)).is_ok());
        for (index, (key, _)) in valid.into_iter().enumerate() {
            for value in ["AKIA1\n", " AKIA1", "AK IA", "ÄKIA", "\0"] {
                let mut changed = valid;
                changed[index].1 = value;
                assert_eq!(access_key(&data(&changed)).unwrap_err(), [key], "{value:?}");
            }
        }
        let mut changed = data(&valid);
        changed.insert("SecretAccessKey", &[0xff]);
        assert_eq!(access_key(&changed).unwrap_err(), ["SecretAccessKey"]);
        changed.extend(data(&valid));
        changed.insert("SessionToken", b"");
        assert!(access_key(&changed).unwrap().session_token.is_none());
    }

    #[test]
    fn debug_output_of_an_access_key_contains_no_secret() {
        let key = access_key(&data(&[
            ("AccessKeyID", "AKIA1"),
            ("SecretAccessKey", "s3cret"),
            ("SessionToken", "t0ken"),
        ]));
        let shown = format!("{:?}", key.unwrap());
        assert!(shown.contains("AKIA1"), "{shown}");
        assert!(
            !shown.contains("s3cret") && !shown.contains("t0ken"),
            "{shown}"
        );
    }
}
