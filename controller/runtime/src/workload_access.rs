//! The command `render`: renders manifests for the controller's own access to a workload cluster, with only the
//! permissions that it needs.
//!
//! | Manifest | Cluster | Content |
//! | --- | --- | --- |
//! | [`rights`] | workload | a service account with the permissions in `packaging/rbac/workload-cluster.yaml` |
//! | [`secret`] | management | a Secret with a kubeconfig of this service account |
//! | [`roles`] | management | permissions for the Secrets of single Clusters, instead of all Secrets |
//! | [`identities`] | workload | the definition of `NodeIdentity`, and the permissions for these objects |

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use node_attestation_core::crd;
use serde::Serialize;
use serde_saphyr::ser::Error as YamlError;

use crate::capi::{
    KUBECONFIG_KEY, KubeconfigRefused, ObjectKey, TenantKubeconfig, access_secret_name,
    ca_secret_name, kubeconfig_text,
};
use crate::client::EgressPolicy;
use crate::preflight::RECORD_VERBS;
use crate::records::WORKLOAD_NAMESPACE;

/// The permissions that a user needs in a workload cluster.
const RIGHTS: &str = include_str!("../../../packaging/rbac/workload-cluster.yaml");

/// The subject in [`RIGHTS`].
const USER: &str = "- apiGroup: rbac.authorization.k8s.io
  kind: User
  name: node-attestation-controller
";

/// The subject of the service account.
const ACCOUNT: &str = "- kind: ServiceAccount
  name: node-attestation-controller
  namespace: node-attestation-system
";

/// The name of the Role and the binding for bootstrap tokens in [`RIGHTS`].
const BOOTSTRAP_TOKENS: &str = "\n  name: node-attestation-controller-tokens\n";

/// The service account, and its permission to renew its own token.
const OWN: &str = "apiVersion: v1
kind: Namespace
metadata:
  name: node-attestation-system
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: node-attestation-controller
  namespace: node-attestation-system
---
# The controller renews the token in its kubeconfig. It cannot create a token for another service account.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: node-attestation-controller-own-token
  namespace: node-attestation-system
rules:
- apiGroups: [\"\"]
  resources: [serviceaccounts/token]
  verbs: [create]
  resourceNames: [node-attestation-controller]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: node-attestation-controller-own-token
  namespace: node-attestation-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: node-attestation-controller-own-token
subjects:
";

/// For a cluster without a management cluster, the prefix of the name of the Role for records, and of its binding. The
/// subject follows the prefix, so that each of several users keeps its permissions.
const RECORDS: &str = "node-attestation-controller-identities:";

/// The group of Roles.
const RBAC: &str = "rbac.authorization.k8s.io";

/// The prefix of a service account's user name.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The reason why the kubeconfig Secret cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAccess {
    /// The text is not a service account token that expires.
    #[error("the token is not a service account token with an expiry time")]
    Token,
    /// The controller would reject the kubeconfig.
    #[error("the controller would reject the kubeconfig")]
    Kubeconfig(#[from] KubeconfigRefused),
    /// The serializer failed.
    #[error("cannot write the manifest")]
    Yaml(#[from] YamlError),
}

/// The service account of the controller in a workload cluster, and its permissions, as YAML documents. If
/// `with_tokens` is not set, the result does not contain the permission for Secrets in `kube-system`, which
/// `bootstrapTokens: Manage` needs.
pub fn rights(with_tokens: bool) -> String {
    let mut documents = format!("{OWN}{ACCOUNT}");
    // The first comment refers to a user.
    let (_, rules) = RIGHTS.split_once("\napiVersion:").unwrap_or_default();
    let rules = format!("apiVersion:{rules}").replace(USER, ACCOUNT);
    for document in rules.split("\n---\n") {
        if with_tokens || !document.contains(BOOTSTRAP_TOKENS) {
            documents.push_str("---\n");
            documents.push_str(document.trim_end());
            documents.push('\n');
        }
    }
    documents
}

/// The Secret in this namespace that contains the controller's own kubeconfig for this Cluster, as YAML. The kubeconfig
/// contains this URL and these CA certificates (as DER) for the API server.
///
/// # Errors
///
/// Returns an error if the controller would not use or renew the kubeconfig. The error does not contain the token.
pub fn secret(
    cluster: &ObjectKey,
    namespace: &str,
    (server, ca): (&str, &[Vec<u8>]),
    token: &str,
    egress: EgressPolicy,
) -> Result<String, InvalidAccess> {
    let text = kubeconfig_text(server, None, ca, token);
    let text = text.ok_or(InvalidAccess::Token)?;
    let kubeconfig = TenantKubeconfig::parse(text.as_bytes(), egress)?;
    kubeconfig.claims().ok_or(InvalidAccess::Token)?;
    let value = ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: metadata(namespace, &access_secret_name(cluster)),
        data: Some([(KUBECONFIG_KEY.to_owned(), value)].into()),
        ..Secret::default()
    };
    Ok(yaml(&secret)?)
}

/// The permissions for the Secrets of these Clusters, as YAML documents: the CA in the Cluster's namespace, and the
/// controller's own kubeconfig in `namespace`. `controller` is `user:NAME` or `group:NAME`.
///
/// # Errors
///
/// Returns the error of the serializer. The manifests contain only values that YAML can represent.
pub fn roles(
    clusters: &[ObjectKey],
    namespace: &str,
    controller: &str,
) -> Result<String, YamlError> {
    let mut documents = String::new();
    for cluster in clusters {
        let ca = ca_secret_name(&cluster.name);
        let kubeconfig = access_secret_name(cluster);
        let name = format!("node-attestation-controller.{ca}");
        for (place, name, secret, verbs) in [
            (&*cluster.namespace, &name, &ca, &["list", "watch"][..]),
            (
                namespace,
                &kubeconfig,
                &kubeconfig,
                &["list", "watch", "patch"][..],
            ),
        ] {
            let rule = PolicyRule {
                resource_names: Some(vec![secret.clone()]),
                ..rule("", "secrets", verbs)
            };
            documents.push_str(&granted((place, name), vec![rule], controller)?);
        }
    }
    Ok(documents)
}

/// The definition of `NodeIdentity`, and the permissions of `controller` for the records of a cluster without a
/// management cluster, as YAML documents. `controller` is `user:NAME` or `group:NAME`.
///
/// # Errors
///
/// Like [`roles`].
pub fn identities(controller: &str) -> Result<String, YamlError> {
    let definition = crd::identity_manifest();
    let group = &*definition.spec.group;
    let rules = vec![
        rule(group, "nodeidentities", &RECORD_VERBS),
        rule(group, "nodeidentities/status", &["patch"]),
    ];
    // A name must not contain these letters.
    let name = format!("{RECORDS}{}", controller.replace(['/', '%'], "-"));
    let granted = granted((WORKLOAD_NAMESPACE, &name), rules, controller)?;
    Ok(crd::yaml(&definition)? + &granted)
}

fn rule(group: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// A Role with these rules, and its binding to `controller`, as YAML documents.
fn granted(
    (namespace, name): (&str, &str),
    rules: Vec<PolicyRule>,
    controller: &str,
) -> Result<String, YamlError> {
    let role = Role {
        metadata: metadata(namespace, name),
        rules: Some(rules),
    };
    let binding = RoleBinding {
        metadata: metadata(namespace, name),
        role_ref: RoleRef {
            api_group: RBAC.to_owned(),
            kind: "Role".to_owned(),
            name: name.to_owned(),
        },
        subjects: Some(vec![subject(controller)]),
    };
    Ok(yaml(&role)? + &yaml(&binding)?)
}

fn metadata(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    }
}

fn yaml(object: &impl Serialize) -> Result<String, YamlError> {
    Ok(format!("---\n{}", serde_saphyr::to_string(object)?))
}

/// The subject that this string refers to. A string without a kind is a user.
fn subject(text: &str) -> Subject {
    let (kind, name) = match text.split_once(':') {
        Some(("group", name)) => ("Group", name),
        Some(("user", name)) => ("User", name),
        Some(_) | None => ("User", text),
    };
    let account = name
        .strip_prefix(SERVICE_ACCOUNT)
        .filter(|_| kind == "User");
    match account.and_then(|account| account.split_once(':')) {
        Some((namespace, name)) => Subject {
            api_group: None,
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
        },
        None => Subject {
            api_group: Some(RBAC.to_owned()),
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: None,
        },
    }
}

#[cfg(test)]
mod tests;
