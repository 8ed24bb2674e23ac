//! The checks of a workload cluster before its first request: its version, and the controller's permissions.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::api::Api;
use kubelet_attestation::errors::shortened;

use crate::watch::{document, reviewed};

/// The first Kubernetes version that forwards the UID in a certificate, which renewals need
/// (`AllowParsingUserUIDFromCertAuth`, enabled by default since this version).
const FIRST_WITH_UIDS: (u32, u32) = (1, 33);

/// The maximum length of a version name, which is limited because the name is stored, for example in a condition. A
/// vendor appends a few characters to `v1.36.0`.
const MAX_NAME_LEN: usize = 128;

const GROUP: &str = "certificates.k8s.io";

/// The version of an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerVersion {
    /// The name that the API server reports. Long names are truncated.
    pub name: String,
    /// The major and minor version, if they are valid.
    pub number: Option<(u32, u32)>,
}

impl ServerVersion {
    /// Whether the API server forwards the UID in a client certificate. Without the UID, a node cannot renew its
    /// certificate.
    pub fn hands_uids_on(&self) -> bool {
        self.number.is_some_and(|number| number >= FIRST_WITH_UIDS)
    }
}

impl From<Info> for ServerVersion {
    fn from(info: Info) -> Self {
        // A vendor can append a plus sign, as in `33+`.
        let minor = info.minor.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number = info.major.parse().ok().zip(minor.parse().ok());
        Self {
            name: shortened(&info.git_version, MAX_NAME_LEN).to_owned(),
            number,
        }
    }
}

/// A permission that a role must contain.
#[derive(Debug, Clone, PartialEq)]
pub struct Right(ResourceAttributes);

/// The verb, group, resource and namespace of a permission. If there is no namespace, the permission is for all
/// namespaces.
type Rule<'a> = [&'a str; 4];

/// The permissions for answering requests, excluding permissions for signers.
const RULES: [Rule<'static>; 8] = [
    ["get", GROUP, "certificatesigningrequests", ""],
    ["list", GROUP, "certificatesigningrequests", ""],
    ["watch", GROUP, "certificatesigningrequests", ""],
    ["update", GROUP, "certificatesigningrequests/approval", ""],
    ["update", GROUP, "certificatesigningrequests/status", ""],
    ["get", "", "nodes", ""],
    ["delete", "", "nodes", ""],
    ["get", "coordination.k8s.io", "leases", "kube-node-lease"],
];

/// The group of this project's resources.
const OURS: &str = "attestation.cluster.x-k8s.io";

/// The group of Cluster API.
const CLUSTER_API: &str = "cluster.x-k8s.io";

/// The verbs for records.
pub(crate) const RECORD_VERBS: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];

/// The permissions in the management cluster: verbs, group and resources. Excludes permissions for Leases, and
/// permissions that only some providers need.
const MANAGEMENT_RULES: [(&[&str], &str, &[&str]); 11] = [
    (
        &["get", "list", "watch", "create", "patch"],
        OURS,
        &["kubeletauthentications"],
    ),
    (&["update"], OURS, &["kubeletauthentications/status"]),
    (&RECORD_VERBS, OURS, &["nodeidentities"]),
    (&["patch"], OURS, &["nodeidentities/status"]),
    (
        &["get", "list", "watch"],
        CLUSTER_API,
        &["clusters", "machines", "machinepools"],
    ),
    (&["list"], CLUSTER_API, &["machinedeployments"]),
    (
        &["list"],
        "controlplane.cluster.x-k8s.io",
        &["kubeadmcontrolplanes"],
    ),
    (&["get"], "controlplane.cluster.x-k8s.io", &["*"]),
    (
        &["get"],
        "bootstrap.cluster.x-k8s.io",
        &["kubeadmconfigs", "kubeadmconfigtemplates"],
    ),
    (&["list", "watch"], "", &["secrets"]),
    (&["create"], "events.k8s.io", &["events"]),
];

/// The permission for Events on requests.
const EVENTS: Rule<'static> = ["create", "events.k8s.io", "events", "default"];

impl Right {
    fn new([verb, group, resource, namespace]: Rule<'_>, name: &str) -> Self {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Self(ResourceAttributes {
            verb: some(verb),
            group: some(group),
            resource: some(resource),
            subresource: some(subresource),
            name: some(name),
            namespace: some(namespace),
            ..ResourceAttributes::default()
        })
    }

    fn review(&self) -> SelfSubjectAccessReview {
        SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(self.0.clone()),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        }
    }
}

impl std::fmt::Display for Right {
    /// Writes the permission as an operator would: `approve signers.certificates.k8s.io/<signer>`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (verb, resource) = (self.0.verb.as_deref(), self.0.resource.as_deref());
        write!(
            f,
            "{} {}",
            verb.unwrap_or_default(),
            resource.unwrap_or_default()
        )?;
        for (before, part) in [
            (".", &self.0.group),
            ("/", &self.0.subresource),
            ("/", &self.0.name),
            (" in namespace ", &self.0.namespace),
        ] {
            if let Some(part) = part {
                write!(f, "{before}{part}")?;
            }
        }
        Ok(())
    }
}

/// The permissions for answering requests for these signers.
pub fn required_rights(signers: &[String]) -> Vec<Right> {
    let on_signers = signers.iter().flat_map(|signer| {
        ["approve", "sign"].map(|verb| Right::new([verb, GROUP, "signers", ""], signer))
    });
    let others = RULES.map(|rule| Right::new(rule, ""));
    others.into_iter().chain(on_signers).collect()
}

/// The permissions that a controller needs in its management cluster.
pub fn management_rights() -> Vec<Right> {
    let mut rights = Vec::new();
    for (verbs, group, resources) in MANAGEMENT_RULES {
        for resource in resources {
            let all = verbs
                .iter()
                .map(|verb| Right::new([verb, group, resource, ""], ""));
            rights.extend(all);
        }
    }
    rights
}

/// The permissions for records in this namespace.
pub fn record_rights(namespace: &str) -> Vec<Right> {
    let right = |verb: &str, resource: &str| Right::new([verb, OURS, resource, namespace], "");
    let mut rights = Vec::from(RECORD_VERBS.map(|verb| right(verb, "nodeidentities")));
    rights.push(right("patch", "nodeidentities/status"));
    rights
}

/// The permissions that are not needed for answering requests.
pub fn optional_rights() -> Vec<Right> {
    vec![Right::new(EVENTS, "")]
}

/// Reads the version of the API server.
///
/// # Errors
///
/// Returns an error if the API server did not respond.
pub async fn version(client: &Client) -> Result<ServerVersion, kube::Error> {
    Ok(info(client).await?.into())
}

/// Reads the version of the API server, as the API server writes it.
pub(crate) async fn info(client: &Client) -> Result<Info, kube::Error> {
    document("", client, "/version").await
}

/// Finds the permissions in `rights` that the current user does not have.
///
/// # Errors
///
/// Returns an error if the API server did not respond.
pub async fn missing(client: &Client, rights: Vec<Right>) -> Result<Vec<Right>, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for right in rights {
        let answer = Box::pin(reviewed(&reviews, &right.review())).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(right);
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(major: &str, minor: &str) -> ServerVersion {
        ServerVersion::from(Info {
            major: major.to_owned(),
            minor: minor.to_owned(),
            ..Info::default()
        })
    }

    #[test]
    fn api_servers_forward_certificate_uids_from_kubernetes_1_33() {
        for (major, minor, expected) in [
            ("1", "32", false),
            ("1", "33", true),
            ("1", "33+", true),
            ("1", "36", true),
            ("2", "0", true),
            ("", "", false),
            ("1", "x", false),
        ] {
            let version = version(major, minor);
            assert_eq!(version.hands_uids_on(), expected, "{major}.{minor}");
        }
    }

    #[test]
    fn the_name_of_a_version_has_a_limit() {
        let name = |len: usize| {
            let git_version = "v".repeat(len);
            let info = Info {
                git_version,
                ..Info::default()
            };
            ServerVersion::from(info).name.len()
        };
        assert_eq!(name(MAX_NAME_LEN), MAX_NAME_LEN);
        assert_eq!(name(2 * 1024 * 1024), MAX_NAME_LEN);
    }

    #[test]
    fn the_manifests_grant_all_management_cluster_permissions() {
        let manifest = include_str!("../../../packaging/rbac/management-cluster.yaml");
        let role = manifest.split("\n---\n").next().unwrap();
        let role: k8s_openapi::api::rbac::v1::ClusterRole = serde_saphyr::from_str(role).unwrap();
        let rules = role.rules.unwrap();
        let granted = |verb: &str, group: &str, resource: &str| {
            let has = |list: &Option<Vec<String>>, one: &str| {
                list.iter().flatten().any(|other| other == one)
            };
            rules.iter().any(|rule| {
                rule.verbs.iter().any(|other| other == verb)
                    && has(&rule.api_groups, group)
                    && has(&rule.resources, resource)
            })
        };

        for (verbs, group, resources) in MANAGEMENT_RULES {
            for (verb, resource) in verbs
                .iter()
                .flat_map(|verb| resources.iter().map(move |it| (verb, it)))
            {
                assert!(granted(verb, group, resource), "{verb} {resource}.{group}");
            }
        }
        assert_eq!(management_rights().len(), 30);
    }

    #[test]
    fn the_permissions_name_exactly_the_signers() {
        let rights = required_rights(&["a.b/c".to_owned()]);

        let rights: Vec<String> = rights.iter().map(ToString::to_string).collect();
        assert_eq!(
            rights,
            [
                "get certificatesigningrequests.certificates.k8s.io",
                "list certificatesigningrequests.certificates.k8s.io",
                "watch certificatesigningrequests.certificates.k8s.io",
                "update certificatesigningrequests.certificates.k8s.io/approval",
                "update certificatesigningrequests.certificates.k8s.io/status",
                "get nodes",
                "delete nodes",
                "get leases.coordination.k8s.io in namespace kube-node-lease",
                "approve signers.certificates.k8s.io/a.b/c",
                "sign signers.certificates.k8s.io/a.b/c",
            ]
        );
    }
}
