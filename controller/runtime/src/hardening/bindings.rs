//! The bindings by which kubelet certificates are approved without evidence.
//!
//! kube-controller-manager approves requests for `kubernetes.io/kube-apiserver-client-kubelet`
//! where the requester may `create` the subresource `nodeclient` (any node's certificate) or
//! `selfnodeclient` (its own again) of certificate signing requests. That right is not a right to
//! call anything: it exists to be asked for by a review, which names no namespace. So only
//! `ClusterRoleBindings` grant it; a `RoleBinding` grants in its namespace, where nobody asks, and
//! none is read.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject};
use kube::api::{Api, ListParams};
use kube::{Client, Resource as _};
use kubelet_attestation::ensure;

use super::access::{HardeningError, call, delete, get};
use crate::watch::{Lenient, Skipped, page_of};

/// The page size of lists of bindings, of some hundred bytes each.
const PAGE_SIZE: u32 = 100;

/// The limit of pages, for a hostile cluster: a cluster has about sixty bindings of its own.
const MAX_PAGES: usize = 100;

/// The memory for the bindings to holders, of which a cluster has about ten.
const MAX_CANDIDATE_BYTES: usize = 1024 * 1024;

/// The limit of their roles, of which a cluster has about five.
const MAX_ROLES: usize = 200;

/// The group that kubeadm gives its tokens.
pub const KUBEADM_TOKENS: &str = "system:bootstrappers:kubeadm:default-node-token";

pub(super) const BOOTSTRAPPERS: &str = "system:bootstrappers";
pub(super) const NODES: &str = "system:nodes";
pub(super) const AUTHENTICATED: &str = "system:authenticated";
pub(super) const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The right that kube-controller-manager requires of a requester before it approves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Grant {
    /// Any node's certificate.
    NodeClient,
    /// The certificate of the node that asks, again.
    SelfNodeClient,
}

impl Grant {
    const ALL: [Self; 2] = [Self::NodeClient, Self::SelfNodeClient];

    /// The subresource that the right is about.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::NodeClient => "nodeclient",
            Self::SelfNodeClient => "selfnodeclient",
        }
    }

    /// The grant of Kubernetes' own role of this name; the API server restores those roles when it starts.
    fn of_cluster_role(name: &str) -> Option<Self> {
        let subresource =
            name.strip_prefix("system:certificates.k8s.io:certificatesigningrequests:")?;
        let mut all = Self::ALL.into_iter();
        all.find(|grant| grant.subresource() == subresource)
    }

    /// The grants of a role with these rules.
    fn all_of(rules: &[PolicyRule]) -> Vec<Self> {
        let granted = |grant: &Self| grant.is_granted_by(rules);
        Self::ALL.into_iter().filter(granted).collect()
    }

    /// Whether a role with these rules grants it (Kubernetes' `RuleAllows`, for no name).
    fn is_granted_by(self, rules: &[PolicyRule]) -> bool {
        let exactly = format!("certificatesigningrequests/{}", self.subresource());
        let anything = format!("*/{}", self.subresource());
        rules.iter().any(|rule| {
            let has = |list: &Option<Vec<String>>, wanted: &[&str]| {
                let mut list = list.iter().flatten();
                list.any(|one| wanted.contains(&one.as_str()))
            };
            let names = rule.resource_names.as_deref().unwrap_or_default();
            rule.verbs
                .iter()
                .any(|verb| verb == "create" || verb == "*")
                && has(&rule.api_groups, &["certificates.k8s.io", "*"])
                && has(&rule.resources, &[&exactly, &anything, "*"])
                && (names.is_empty() || names.iter().any(String::is_empty))
        })
    }
}

/// A subject that has proved only that it holds a token or a certificate.
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Holder {
    /// All members of a group.
    #[display("group {_0}")]
    Group(String),
    /// One user.
    #[display("user {_0}")]
    User(String),
}

impl Holder {
    /// The subject, unless it is an administrator or a service account.
    fn of(subject: &Subject) -> Option<Self> {
        let name = subject.name.as_str();
        let is_group =
            is_bootstrappers(name) || [NODES, AUTHENTICATED, UNAUTHENTICATED].contains(&name);
        let is_user = name.starts_with("system:bootstrap:")
            || name.starts_with("system:node:")
            || name == "system:anonymous";
        match subject.kind.as_str() {
            "Group" if is_group => Some(Self::Group(name.to_owned())),
            "User" if is_user => Some(Self::User(name.to_owned())),
            _ => None,
        }
    }

    /// Whether the right is of use to it: `selfnodeclient` is to nodes alone.
    fn can_use(&self, grant: Grant) -> bool {
        match (grant, self) {
            (Grant::NodeClient, _) => true,
            (Grant::SelfNodeClient, Self::Group(name)) => name == NODES || name == AUTHENTICATED,
            (Grant::SelfNodeClient, Self::User(name)) => name.starts_with("system:node:"),
        }
    }
}

pub(super) fn is_bootstrappers(group: &str) -> bool {
    group
        .strip_prefix(BOOTSTRAPPERS)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// kubeadm's two bindings that approve kubelets without evidence: the name of the `ClusterRoleBinding`, the grant, and
/// the group that has it. By the first, a token is enough for any node's certificate; by the second, a node's
/// certificate is enough for the next one.
const KUBEADM: [(&str, Grant, &str); 2] = [
    (
        "kubeadm:node-autoapprove-bootstrap",
        Grant::NodeClient,
        KUBEADM_TOKENS,
    ),
    (
        "kubeadm:node-autoapprove-certificate-rotation",
        Grant::SelfNodeClient,
        NODES,
    ),
];

/// Whether the binding is one of kubeadm's, exactly as kubeadm writes it.
fn is_kubeadms(binding: &ClusterRoleBinding) -> bool {
    let [subject] = binding.subjects.as_deref().unwrap_or_default() else {
        return false;
    };
    let role = &binding.role_ref;
    KUBEADM.iter().any(|(name, grant, group)| {
        binding.metadata.name.as_deref() == Some(*name)
            && role.kind == "ClusterRole"
            && Grant::of_cluster_role(&role.name) == Some(*grant)
            && subject.kind == "Group"
            && subject.name == *group
    })
}

/// A binding by which requests are approved without evidence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct OpenBinding {
    /// The `ClusterRoleBinding`.
    pub name: String,
    /// Its `ClusterRole`.
    pub role: String,
    /// The subject whose requests it approves.
    pub holder: Holder,
    /// The right.
    pub grant: Grant,
    /// Whether it is one of kubeadm's, unchanged.
    pub is_kubeadms: bool,
    uid: Option<String>,
}

/// The result of a scan of a cluster's bindings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scan {
    /// The bindings by which requests are approved without evidence, in order.
    pub open: Vec<OpenBinding>,
    /// The groups of bootstrap tokens that any binding names.
    pub(super) token_groups: BTreeSet<String>,
}

/// Reads the `ClusterRoleBindings`, and those of their `ClusterRoles` whose rules must be known.
///
/// # Errors
///
/// They could not be read.
pub async fn scan(client: &Client) -> Result<Scan, HardeningError> {
    let candidates = list(client).await?;
    let mut grants_of = BTreeMap::new();
    let names = roles_to_read(&candidates);
    if names.len() > MAX_ROLES {
        return Err(HardeningError::TooMany {
            object: "clusterroles of tokens and nodes",
            limit: MAX_ROLES,
        });
    }
    for name in names {
        let role: Option<ClusterRole> = get(client, &name).await?;
        let rules = role.and_then(|role| role.rules).unwrap_or_default();
        grants_of.insert(name, Grant::all_of(&rules));
    }
    Ok(evaluate(&candidates, &grants_of))
}

/// The relevant part of a binding to holders.
#[derive(Debug)]
struct Candidate {
    name: String,
    uid: Option<String>,
    role: String,
    is_kubeadms: bool,
    holders: Vec<Holder>,
}

impl Candidate {
    /// The binding, if it has a holder among its subjects.
    fn of(binding: &ClusterRoleBinding) -> Option<Self> {
        let holders: Vec<Holder> = binding
            .subjects
            .iter()
            .flatten()
            .filter_map(Holder::of)
            .collect();
        (!holders.is_empty()).then(|| Self {
            is_kubeadms: is_kubeadms(binding),
            name: binding.metadata.name.clone().unwrap_or_default(),
            uid: binding.metadata.uid.clone(),
            role: binding.role_ref.name.clone(),
            holders,
        })
    }

    /// Its bytes, and those of the bindings that are made of it: each has its name and its role.
    fn len(&self) -> usize {
        let holders = self.holders.iter().map(|holder| match holder {
            Holder::Group(name) | Holder::User(name) => name.len() + size_of::<Holder>(),
        });
        let uid = self.uid.as_ref().map_or(0, String::len);
        let bindings = 1 + Grant::ALL.len() * self.holders.len();
        let names = bindings * (self.name.len() + self.role.len());
        size_of::<Self>() + uid + names + holders.sum::<usize>()
    }
}

/// Lists the bindings to holders; of each page, only those are kept.
async fn list(client: &Client) -> Result<Vec<Candidate>, HardeningError> {
    const OBJECT: &str = "clusterrolebindings";
    let too_many = |limit| HardeningError::TooMany {
        object: OBJECT,
        limit,
    };
    let api: Api<Lenient<ClusterRoleBinding>> = Api::all(client.clone());
    let mut page = ListParams::default().limit(PAGE_SIZE);
    let (mut candidates, mut bytes) = (Vec::new(), 0);
    let mut skipped = Skipped::new("ClusterRoleBinding");
    for _ in 0..MAX_PAGES {
        let answer = call(format!("list {OBJECT}"), page_of(&api, &page)).await?;
        for seen in &answer.items {
            match &seen.object {
                Ok(binding) => {
                    let candidate = Candidate::of(binding);
                    bytes += candidate.as_ref().map_or(0, Candidate::len);
                    candidates.extend(candidate);
                }
                Err(error) => skipped.note(seen.meta(), error),
            }
        }
        ensure!(bytes <= MAX_CANDIDATE_BYTES, too_many(candidates.len()));
        match answer.metadata.continue_ {
            Some(token) if !token.is_empty() => page = page.continue_token(&token),
            _ => return Ok(candidates),
        }
    }
    Err(too_many(candidates.len()))
}

/// The roles of holders that are not known by name.
fn roles_to_read(candidates: &[Candidate]) -> BTreeSet<String> {
    let roles = candidates.iter().map(|candidate| &candidate.role);
    let unknown = roles.filter(|role| Grant::of_cluster_role(role).is_none());
    unknown.cloned().collect()
}

fn evaluate(candidates: &[Candidate], grants_of: &BTreeMap<String, Vec<Grant>>) -> Scan {
    let mut scan = Scan::default();
    for candidate in candidates {
        let role = &candidate.role;
        let read = grants_of.get(role).into_iter().flatten().copied();
        let grants: Vec<Grant> = Grant::of_cluster_role(role)
            .into_iter()
            .chain(read)
            .collect();
        for holder in &candidate.holders {
            if let Holder::Group(group) = holder
                && is_bootstrappers(group)
            {
                scan.token_groups.insert(group.clone());
            }
            let open = grants.iter().filter(|grant| holder.can_use(**grant));
            scan.open.extend(open.map(|grant| OpenBinding {
                name: candidate.name.clone(),
                role: role.clone(),
                holder: holder.clone(),
                grant: *grant,
                is_kubeadms: candidate.is_kubeadms,
                // Of those that are removed alone: a text of the cluster is not repeated for each holder.
                uid: candidate.uid.clone().filter(|_| candidate.is_kubeadms),
            }));
        }
    }
    scan.open.sort();
    scan
}

/// Removes kubeadm's two bindings where `scan` found them as kubeadm writes them, and takes them
/// out of the scan; returns the names of what was removed.
///
/// Bindings that a person wrote, under these names or others, stay in [`Scan::open`], for a person to remove. kubeadm
/// writes its own again in `kubeadm upgrade apply` and `kubeadm init phase bootstrap-token`, so scan and remove
/// periodically.
///
/// # Errors
///
/// A binding could not be removed, or is no longer the one that was scanned. Then the scan is incomplete.
pub async fn remove(client: &Client, scan: &mut Scan) -> Result<Vec<String>, HardeningError> {
    let mut removed = Vec::new();
    // Each of them opens one way.
    for open in scan.open.extract_if(.., |open| open.is_kubeadms) {
        delete::<ClusterRoleBinding>(client, &open.name, open.uid).await?;
        removed.push(open.name);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests;
