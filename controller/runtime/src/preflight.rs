//! What is asked of a workload cluster before its first request: is it new enough, and may we do
//! our work there?

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::api::{Api, PostParams};

/// The first version that hands a certificate's UID on, on which a renewal rests (Kubernetes'
/// `AllowParsingUserUIDFromCertAuth`, on by default since).
const FIRST_WITH_UIDS: (u32, u32) = (1, 33);

const GROUP: &str = "certificates.k8s.io";

/// What was found out about a workload cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// The API server's version.
    pub version: ServerVersion,
    /// The rights without which requests cannot be answered, and that are missing.
    pub missing: Vec<Right>,
    /// The rights without which something less than an answer is missed.
    pub missing_optional: Vec<Right>,
}

/// An API server's version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerVersion {
    /// As it calls itself.
    pub name: String,
    /// Major and minor, where they can be read.
    pub number: Option<(u32, u32)>,
}

impl ServerVersion {
    /// Whether the API server hands the UID of a client certificate on, so that a node can renew
    /// its own.
    pub fn hands_uids_on(&self) -> bool {
        self.number.is_some_and(|number| number >= FIRST_WITH_UIDS)
    }
}

impl From<Info> for ServerVersion {
    fn from(info: Info) -> Self {
        // A vendor may append a sign: `33+`.
        let minor = info.minor.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number = info.major.parse().ok().zip(minor.parse().ok());
        Self {
            name: info.git_version,
            number,
        }
    }
}

/// One thing that a role must allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    verb: &'static str,
    group: &'static str,
    /// A resource, or one with its subresource.
    resource: &'static str,
    namespace: &'static str,
    name: String,
}

/// Verb, group, resource and namespace of a right; without a namespace it is for all of them.
type Rule = [&'static str; 4];

/// The rights that answering requests takes, beside those on signers.
const RULES: [Rule; 8] = [
    ["get", GROUP, "certificatesigningrequests", ""],
    ["list", GROUP, "certificatesigningrequests", ""],
    ["watch", GROUP, "certificatesigningrequests", ""],
    ["update", GROUP, "certificatesigningrequests/approval", ""],
    ["update", GROUP, "certificatesigningrequests/status", ""],
    ["get", "", "nodes", ""],
    ["delete", "", "nodes", ""],
    ["get", "coordination.k8s.io", "leases", "kube-node-lease"],
];

/// The right without which there are no Events on requests.
const EVENTS: Rule = ["create", "events.k8s.io", "events", "default"];

impl Right {
    fn new([verb, group, resource, namespace]: Rule, name: &str) -> Self {
        Self {
            verb,
            group,
            resource,
            namespace,
            name: name.to_owned(),
        }
    }

    fn review(&self) -> SelfSubjectAccessReview {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let attributes = ResourceAttributes {
            verb: some(self.verb),
            group: some(self.group),
            resource: some(resource),
            subresource: some(subresource),
            name: some(&self.name),
            namespace: some(self.namespace),
            ..ResourceAttributes::default()
        };
        SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        }
    }
}

impl std::fmt::Display for Right {
    /// As an operator would write it down: `approve signers.certificates.k8s.io/<signer>`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = self.resource.split('/');
        write!(f, "{} {}", self.verb, parts.next().unwrap_or_default())?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        for part in parts
            .chain([self.name.as_str()])
            .filter(|part| !part.is_empty())
        {
            write!(f, "/{part}")?;
        }
        if !self.namespace.is_empty() {
            write!(f, " in namespace {}", self.namespace)?;
        }
        Ok(())
    }
}

/// The rights that answering these signers' requests takes.
pub fn required_rights(signers: &[String]) -> Vec<Right> {
    let on_signers = signers.iter().flat_map(|signer| {
        ["approve", "sign"].map(|verb| Right::new([verb, GROUP, "signers", ""], signer))
    });
    let others = RULES.map(|rule| Right::new(rule, ""));
    others.into_iter().chain(on_signers).collect()
}

/// Asks the API server for its version, and whether it lets us do our work.
///
/// # Errors
///
/// It could not be asked.
pub async fn examine(client: &Client, signers: &[String]) -> Result<Findings, kube::Error> {
    let version = client.apiserver_version().await?.into();
    let missing = denied(client, required_rights(signers)).await?;
    let missing_optional = denied(client, vec![Right::new(EVENTS, "")]).await?;
    Ok(Findings {
        version,
        missing,
        missing_optional,
    })
}

/// Finds out the version alone: what `client` may do was found out before.
pub(crate) async fn version(client: &Client) -> Result<Findings, kube::Error> {
    Ok(Findings {
        version: client.apiserver_version().await?.into(),
        missing: Vec::new(),
        missing_optional: Vec::new(),
    })
}

async fn denied(client: &Client, rights: Vec<Right>) -> Result<Vec<Right>, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut denied = Vec::new();
    for right in rights {
        let answer = reviews
            .create(&PostParams::default(), &right.review())
            .await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            denied.push(right);
        }
    }
    Ok(denied)
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
    fn uids_are_handed_on_from_1_33() {
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
    fn the_rights_name_exactly_the_signers() {
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
