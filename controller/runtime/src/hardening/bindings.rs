//! The bindings that make kube-controller-manager approve kubelet certificates without evidence.
//!
//! kube-controller-manager approves requests for `kubernetes.io/kube-apiserver-client-kubelet` if the requester is
//! allowed to `create` a subresource of certificate signing requests: `nodeclient` (a certificate for any node) or
//! `selfnodeclient` (a new certificate for itself). This permission does not allow an API call: it only affects the
//! result of an access review. This review does not specify a namespace, so only `ClusterRoleBindings` grant the
//! permission. A `RoleBinding` affects only reviews for its namespace. Therefore `RoleBindings` are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject};
use kube::api::{Api, ListParams};
use kube::{Client, Resource as _};
use kubelet_attestation::ensure;

use super::access::{HardeningError, delete, get, next_page};
use crate::client::{CallError, Excess, Pages};
use crate::log_lines::ClusterLines;
use crate::memory::{Holding, Share};
use crate::watch::{Lenient, Skipped};

mod returns;

pub(crate) use returns::report_returns;

/// The page size for lists of bindings. Each binding uses a few hundred bytes.
const PAGE_SIZE: u32 = 100;

/// The maximum number of pages, to limit a hostile cluster. A cluster contains about 60 built-in bindings.
const MAX_PAGES: usize = 100;

/// The maximum memory for bindings to holders, which is enough for about 5,000 subjects. A cluster has about 10.
const MAX_CANDIDATE_BYTES: usize = 8 * 1024 * 1024;

/// The memory that is reserved for one cluster's bindings, which is enough for about 50 subjects.
const OWN_MEMORY: usize = 64 * 1024;

/// The memory for a string in addition to its bytes: its place in a set, and its allocation.
const TEXT_LEN: usize = 48;

/// The number of copies of an open binding: in the scan, and as a path.
const COPIES: usize = 2;

/// The number of copies of a token group: in the scan, in a review query, and in a call.
const GROUP_COPIES: usize = 3;

/// The maximum number of roles in these bindings. A cluster has about 5.
const MAX_ROLES: usize = 200;

/// The group of kubeadm's bootstrap tokens.
pub const KUBEADM_TOKENS: &str = "system:bootstrappers:kubeadm:default-node-token";

pub(super) const BOOTSTRAPPERS: &str = "system:bootstrappers";
pub(super) const NODES: &str = "system:nodes";
pub(super) const AUTHENTICATED: &str = "system:authenticated";
pub(super) const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The permission that a requester needs for kube-controller-manager to approve its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Grant {
    /// A certificate for any node.
    NodeClient,
    /// A new certificate for the requesting node.
    SelfNodeClient,
}

impl Grant {
    const ALL: [Self; 2] = [Self::NodeClient, Self::SelfNodeClient];

    /// The subresource to which the permission refers.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::NodeClient => "nodeclient",
            Self::SelfNodeClient => "selfnodeclient",
        }
    }

    /// Returns the grant that the built-in Kubernetes role with this name contains. The API server restores these roles
    /// at startup.
    fn of_cluster_role(name: &str) -> Option<Self> {
        let subresource =
            name.strip_prefix("system:certificates.k8s.io:certificatesigningrequests:")?;
        let mut all = Self::ALL.into_iter();
        all.find(|grant| grant.subresource() == subresource)
    }

    /// The grants in a role with these rules.
    fn all_of(rules: &[PolicyRule]) -> Vec<Self> {
        let granted = |grant: &Self| grant.is_granted_by(rules);
        Self::ALL.into_iter().filter(granted).collect()
    }

    /// Whether a role with these rules grants the permission (Kubernetes' `RuleAllows`, without a resource name).
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

/// A subject that needs only a bootstrap token or a node certificate to authenticate.
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Holder {
    /// All members of this group.
    #[display("group {_0}")]
    Group(String),
    /// One user.
    #[display("user {_0}")]
    User(String),
}

impl Holder {
    /// The holder that this subject represents. `None` for an administrator or a service account.
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

    /// Whether the holder can use the permission. Only nodes can use `selfnodeclient`.
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
/// the group. With the first binding, a token is sufficient to get a certificate for any node. With the second binding,
/// a node's certificate is sufficient to get the next certificate.
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

/// Whether the binding is one of kubeadm's bindings, exactly as kubeadm writes it.
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

/// A binding that approves requests without evidence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct OpenBinding {
    /// The `ClusterRoleBinding`.
    pub name: String,
    /// The `ClusterRole` to which the binding refers.
    pub role: String,
    /// The subject whose requests are approved.
    pub holder: Holder,
    /// The permission.
    pub grant: Grant,
    /// Whether the binding is an unchanged kubeadm binding.
    pub is_kubeadms: bool,
    uid: Option<String>,
}

/// The result of a scan of a cluster's bindings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scan {
    /// The bindings that approve requests without evidence, sorted.
    pub open: Vec<OpenBinding>,
    /// The bootstrap token groups that occur in at least one binding.
    pub(super) token_groups: BTreeSet<String>,
}

/// Reads the `ClusterRoleBindings`, and the `ClusterRoles` in them whose rules are needed.
///
/// # Errors
///
/// Returns an error if the objects could not be read.
pub async fn scan(client: &Client) -> Result<Scan, HardeningError> {
    let lines = ClusterLines::of_namespace("");
    scan_of(client, &lines, &mut memory_of(&lines)).await
}

/// The memory for scanning the cluster to which these log lines belong. The memory is held until the scan and its
/// result are dropped, because a tenant's API server can slow down the calls of an inspection.
pub(crate) fn memory_of(lines: &ClusterLines) -> Holding {
    Share::new(lines.namespace(), OWN_MEMORY).holding()
}

/// Like [`scan`], for the cluster to which these log lines belong. Uses this memory.
pub(crate) async fn scan_of(
    client: &Client,
    lines: &ClusterLines,
    memory: &mut Holding,
) -> Result<Scan, HardeningError> {
    let candidates = list(client, lines, memory).await?;
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

/// The relevant fields of a binding that has a holder among its subjects.
#[derive(Debug)]
struct Candidate {
    name: String,
    uid: Option<String>,
    role: String,
    is_kubeadms: bool,
    holders: Vec<Holder>,
}

impl Candidate {
    /// The candidate for this binding. `None` if none of its subjects is a holder.
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

    /// The memory for the candidate, and for the bindings, paths and groups that are created from it if its role has
    /// both permissions.
    fn len(&self) -> usize {
        let of_text = |text: &str| text.len() + TEXT_LEN;
        let uid = self.uid.as_deref().map_or(0, of_text);
        let names = of_text(&self.name) + of_text(&self.role);
        let of_open = size_of::<OpenBinding>() + names + if self.is_kubeadms { uid } else { 0 };
        let of_holder = |holder: &Holder| {
            let (Holder::Group(name) | Holder::User(name)) = holder;
            let name = of_text(name);
            let is_tokens = matches!(holder, Holder::Group(group) if is_bootstrappers(group));
            let groups = if is_tokens { GROUP_COPIES * name } else { 0 };
            let grants = self.grants_of(holder).count();
            size_of::<Holder>() + name + groups + COPIES * grants * (of_open + name)
        };
        let holders: usize = self.holders.iter().map(of_holder).sum();
        size_of::<Self>() + names + uid + holders
    }

    /// The grants that the holder can use. A role that is not built in can have each of the two permissions.
    fn grants_of(&self, holder: &Holder) -> impl Iterator<Item = Grant> {
        let built_in = Grant::of_cluster_role(&self.role);
        let all = Grant::ALL.into_iter();
        let granted = all.filter(move |grant| built_in.is_none_or(|own| own == *grant));
        granted.filter(move |grant| holder.can_use(*grant))
    }
}

/// Lists the bindings that have a holder. The other bindings on each page are dropped.
async fn list(
    client: &Client,
    lines: &ClusterLines,
    memory: &mut Holding,
) -> Result<Vec<Candidate>, HardeningError> {
    const OBJECT: &str = "clusterrolebindings";
    let too_many = |limit| HardeningError::TooMany {
        object: OBJECT,
        limit,
    };
    let api: Api<Lenient<ClusterRoleBinding>> = Api::all(client.clone());
    let mut pages = Pages::of_size(PAGE_SIZE, ListParams::default());
    let (mut candidates, mut bytes) = (Vec::new(), 0);
    let mut skipped = Skipped::of_cluster("ClusterRoleBinding", lines.clone());
    for _ in 0..MAX_PAGES {
        let page = next_page(&api, &mut pages).await?;
        for seen in page.iter().flatten() {
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
        ensure!(memory.resize(bytes), without_memory(OBJECT));
        if pages.are_read() {
            return Ok(candidates);
        }
    }
    Err(too_many(candidates.len()))
}

fn without_memory(object: &str) -> HardeningError {
    let source = kube::Error::Service(Excess::Memory.into());
    HardeningError::Unavailable {
        call: format!("list {object}"),
        source: CallError::Failed(Box::new(source)),
    }
}

/// The roles of holders, except built-in roles.
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
                // Only bindings that must be removed need the UID. Therefore the UID, which is a string from the
                // cluster, is not copied for every holder.
                uid: candidate.uid.clone().filter(|_| candidate.is_kubeadms),
            }));
        }
    }
    scan.open.sort();
    scan
}

/// The outcome of [`remove`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Removed {
    /// The names of the removed bindings.
    pub names: Vec<String>,
    /// The errors that the API server returned when it rejected the deletion of a binding.
    pub refusals: Vec<HardeningError>,
}

/// Removes kubeadm's two bindings, if `scan` found them exactly as kubeadm writes them. Also removes them from the
/// scan.
///
/// If an operator wrote a binding, it remains in [`Scan::open`] regardless of its name, and the operator must remove
/// it. The same applies if the API server rejects the deletion. `kubeadm upgrade apply` and `kubeadm init phase
/// bootstrap-token` create kubeadm's bindings again, so the caller must scan and remove periodically.
///
/// # Errors
///
/// Returns an error if the API server is unavailable. The scan is then incomplete.
pub async fn remove(client: &Client, scan: &mut Scan) -> Result<Removed, HardeningError> {
    let mut removed = Removed::default();
    // Each of the two bindings opens one path.
    for open in mem::take(&mut scan.open) {
        if !open.is_kubeadms {
            scan.open.push(open);
            continue;
        }
        match delete::<ClusterRoleBinding>(client, &open.name, open.uid.clone()).await {
            Ok(()) => removed.names.push(open.name),
            // For example, an admission webhook can protect one of the bindings.
            Err(error @ (HardeningError::Refused { .. } | HardeningError::Forbidden { .. })) => {
                removed.refusals.push(error);
                scan.open.push(open);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests;
