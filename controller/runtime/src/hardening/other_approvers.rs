//! Finds other clients that approve or sign requests for serving certificates.
//!
//! A request does not contain the user that approved it. The API server stores only the reason and the message that the
//! approver wrote. Therefore the requests show that another approver is active, and the bindings show which users have
//! the permission.
//!
//! kube-controller-manager deletes an issued request after 1 hour, so the requests cover only the last hour.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject};
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::ensure;
use kubelet_attestation::errors::{error_chain, shortened};
use kubelet_attestation::names::BUILT_IN_SERVING_SIGNER;
use node_attestation_core::request::ApprovalReason;
use node_attestation_core::signer::is_other_serving;

use super::access::{HardeningError, Object, call, next_page};
use crate::client::{CONTROLLER, PAGE_SIZE, Pages};
use crate::watch::{Lenient, reviewed};

/// The condition type of an approved request.
const APPROVED: &str = "Approved";

/// The page size for roles and bindings. Each role or binding uses a few hundred bytes.
const ROLES_A_PAGE: u32 = 100;

/// The maximum number of pages, to limit a hostile cluster: 1,600 requests, or 10,000 roles or bindings.
const MAX_PAGES: usize = 100;

/// The number of roles or bindings on these pages.
const MAX_OBJECTS: usize = MAX_PAGES * 100;

/// The reasons of well-known approvers, which are label values of a metric: kube-controller-manager, kubectl and
/// `OpenShift`. If other reasons were label values too, a tenant could create any number of series over time.
const KNOWN: [&str; 4] = ["AutoApproved", "KubectlApprove", "NodeCSRApprove", NONE];

/// The maximum number of reasons that are counted separately in the condition.
const MAX_REASONS: usize = 5;

/// The label value for all other reasons.
const OTHER: &str = "other";

/// The label value for an approval without a reason.
const NONE: &str = "none";

/// The maximum length of a reason.
const MAX_REASON_LEN: usize = 64;

/// The maximum number of bindings in the result, and of subjects for each binding.
const MAX_NAMED: usize = 5;

/// The maximum length of a binding in the result: three names with the maximum length in Kubernetes.
const MAX_BINDING_LEN: usize = 768;

/// The maximum number of roles that grant the permission.
const MAX_ROLES: usize = 200;

/// The maximum length of the name of a role. A hostile cluster can use role names that are megabytes long, and the
/// names are kept until the bindings are read.
const MAX_ROLE_LEN: usize = 1024;

/// The maximum length of this controller's user name, which is also kept until the bindings are read.
const MAX_USER_LEN: usize = 1024;

/// The start of the message if this controller signs serving certificates. `cluster check` reads it from the
/// condition, because no object contains the controller's options.
const SIGNING: &str = "this controller signs serving certificates";

/// The role of cluster administrators. Administrators can approve any request, which is intended.
const ADMINISTRATORS: &str = "cluster-admin";

/// The other approvers of requests for serving certificates in a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherApprovers {
    /// For each reason that another approver wrote, the number of requests that were approved with it in the last hour.
    pub approved: BTreeMap<String, usize>,
    /// The first few bindings that permit approvals.
    pub permitted: Vec<String>,
    /// The number of further bindings, which are not in [`permitted`](Self::permitted).
    pub more: usize,
    /// The error message, if the controller is not allowed to list roles, or cannot read some of the requests, roles or
    /// bindings.
    pub unread: Option<String>,
    /// Whether the controller signs the serving certificates in this cluster, according to its options. If true, each
    /// signature by another signer counts as a finding.
    pub signs: bool,
    /// The number of requests that another signer signed in the last hour. 0 if kube-controller-manager signs these
    /// requests.
    pub signed: usize,
    /// The number of requests that any other signer signed in the last hour, including kube-controller-manager.
    signed_by_any: usize,
}

/// The result of listing objects.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Whether all pages were read.
    are_all: bool,
    /// The number of objects that cannot be read.
    unreadable: usize,
    /// The name of the first object that cannot be read.
    first: String,
}

impl Listed {
    /// Whether all objects were read.
    pub(super) fn is_complete(&self) -> bool {
        self.are_all && self.unreadable == 0
    }
}

impl OtherApprovers {
    /// Whether no other approver was found.
    pub fn is_empty(&self) -> bool {
        self.approved.is_empty() && self.permitted.is_empty() && self.signed == 0
    }

    /// The same result for a cluster in which the controller signs the serving certificates.
    #[must_use]
    pub fn with_signers(self) -> Self {
        Self {
            signs: true,
            signed: self.signed_by_any,
            ..self
        }
    }

    /// Whether the controller signs the serving certificates, according to the message of its condition.
    pub(crate) fn is_signing(message: &str) -> bool {
        message.starts_with(SIGNING)
    }

    /// The number of approvals for each well-known reason, and for all other reasons together.
    pub(crate) fn by_known_reason(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for (reason, count) in &self.approved {
            let is_known = KNOWN.contains(&reason.as_str());
            let reason = if is_known { reason.as_str() } else { OTHER };
            *all.entry(reason.to_owned()).or_default() += count;
        }
        all
    }

    fn note(&mut self, request: &CertificateSigningRequest) {
        let status = request.status.as_ref();
        let certificate = status.and_then(|status| status.certificate.as_ref());
        if certificate.is_some_and(|one| !one.0.is_empty() && is_other_serving(&one.0)) {
            self.signed_by_any += 1;
        }
        let mut conditions = request
            .status
            .iter()
            .flat_map(|one| &one.conditions)
            .flatten();
        let Some(approval) = conditions.find(|one| one.type_ == APPROVED) else {
            return;
        };
        let reason = approval.reason.as_deref().unwrap_or_default();
        if reason == ApprovalReason::ServingNamesCorroborated.reason() {
            return;
        }
        let mut name = label(reason);
        if self.approved.len() >= MAX_REASONS && !self.approved.contains_key(&name) {
            OTHER.clone_into(&mut name);
        }
        *self.approved.entry(name).or_default() += 1;
    }

    /// Records the objects that cannot be read. These objects could be roles or bindings that permit approvals, or
    /// approved requests.
    fn skip<K: Object>(&mut self, listed: &Listed) {
        let more = match listed.unreadable {
            0 => return,
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        self.add_unread(format!(
            "cannot read {}/{}{more}",
            K::plural(&()),
            listed.first
        ));
    }

    fn add_unread(&mut self, text: String) {
        self.unread = Some(match self.unread.take() {
            Some(former) => format!("{former}; {text}"),
            None => text,
        });
    }

    fn permit(&mut self, binding: &ClusterRoleBinding) {
        if self.permitted.len() < MAX_NAMED {
            self.permitted.push(named(binding));
        } else {
            self.more += 1;
        }
    }
}

impl fmt::Display for OtherApprovers {
    /// Writes the message for the condition.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.approved.is_empty() {
            let counts = self.approved.iter();
            let counts =
                counts.map(|(reason, count)| format!("{count} with the reason {reason:?}"));
            let counts: Vec<_> = counts.collect();
            parts.push(format!(
                "another approver approved requests for {BUILT_IN_SERVING_SIGNER} in the last hour: {}",
                counts.join(", ")
            ));
        }
        if self.signed > 0 {
            parts.push(format!(
                "another signer signed {} requests for {BUILT_IN_SERVING_SIGNER} in the last hour",
                self.signed
            ));
        }
        if !self.permitted.is_empty() {
            let more = (self.more > 0).then(|| format!("and {} more", self.more));
            let bindings = self.permitted.iter().cloned().chain(more);
            let bindings: Vec<_> = bindings.collect();
            parts.push(format!(
                "these bindings permit approvals for {BUILT_IN_SERVING_SIGNER}: {}",
                bindings.join("; ")
            ));
        }
        parts.extend(self.unread.clone());
        if parts.is_empty() {
            let or_signer = if self.signs { " or signer" } else { "" };
            parts.push(format!(
                "no other approver{or_signer} of serving certificates was found"
            ));
        }
        if self.signs {
            parts.insert(0, SIGNING.to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

/// Reads the requests, the roles and the bindings in the cluster.
///
/// # Errors
///
/// Returns an error if a call to the API server failed. A missing permission to list roles is not an error.
pub async fn read(client: &Client) -> Result<OtherApprovers, HardeningError> {
    let mut found = OtherApprovers::default();
    let of_signer = format!("spec.signerName={BUILT_IN_SERVING_SIGNER}");
    let wanted = ListParams::default().fields(&of_signer);
    let listed = each(
        client,
        (PAGE_SIZE, wanted),
        |request: CertificateSigningRequest| {
            found.note(&request);
        },
    )
    .await?;
    found.skip::<CertificateSigningRequest>(&listed);
    if !listed.are_all {
        found.add_unread(format!(
            "cannot read all requests for {BUILT_IN_SERVING_SIGNER}, because there are too many"
        ));
    }
    let (mut roles, mut are_few) = (BTreeSet::new(), true);
    let wanted = (ROLES_A_PAGE, ListParams::default());
    let listed = each(client, wanted.clone(), |role: ClusterRole| {
        let name = role.metadata.name.unwrap_or_default();
        if name == ADMINISTRATORS || !permits(role.rules.as_deref().unwrap_or_default()) {
            return;
        }
        if roles.len() < MAX_ROLES && name.len() <= MAX_ROLE_LEN {
            roles.insert(name);
        } else {
            are_few = false;
        }
    })
    .await;
    match listed {
        Ok(listed) => {
            ensure!(listed.are_all, too_many("clusterroles", MAX_OBJECTS));
            ensure!(are_few, too_many("clusterroles of approvers", MAX_ROLES));
            found.skip::<ClusterRole>(&listed);
        }
        Err(error @ HardeningError::Forbidden { .. }) => {
            found.add_unread(error_chain(&error));
            return Ok(found);
        }
        Err(error) => return Err(error),
    }
    if !roles.is_empty() {
        let reported = own_user(client).await;
        let is_own = |one: &Subject| {
            let user = user_of(one);
            user.is_some_and(|user| user == CONTROLLER || reported.as_ref() == Some(&user))
        };
        let listed = each(client, wanted, |binding: ClusterRoleBinding| {
            let mut subjects = binding.subjects.iter().flatten();
            if subjects.any(|one| !is_own(one)) && roles.contains(&binding.role_ref.name) {
                found.permit(&binding);
            }
        })
        .await?;
        ensure!(listed.are_all, too_many("clusterrolebindings", MAX_OBJECTS));
        found.skip::<ClusterRoleBinding>(&listed);
    }
    Ok(found)
}

/// The user name of this controller, as the API server reports it. The manifest binds the role to [`CONTROLLER`], but
/// an operator can bind it to another user. `None` for a longer name.
async fn own_user(client: &Client) -> Option<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = SelfSubjectReview::default();
    let answer = reviewed(&reviews, &review);
    let answer = call("create selfsubjectreviews", answer).await.ok()?;
    let name = answer.status?.user_info?.username?;
    (name.len() <= MAX_USER_LEN).then_some(name)
}

/// The user name of a subject. `None` for a group.
fn user_of(subject: &Subject) -> Option<String> {
    let Subject { kind, name, .. } = subject;
    match kind.as_str() {
        "User" => Some(name.clone()),
        "ServiceAccount" => {
            let namespace = subject.namespace.as_deref().unwrap_or_default();
            Some(format!("system:serviceaccount:{namespace}:{name}"))
        }
        _ => None,
    }
}

fn too_many(object: &'static str, limit: usize) -> HardeningError {
    HardeningError::TooMany { object, limit }
}

/// Calls `take` with each readable object. `wanted` contains the maximum number of objects on a page.
pub(super) async fn each<K: Object>(
    client: &Client,
    wanted: (u32, ListParams),
    mut take: impl FnMut(K),
) -> Result<Listed, HardeningError> {
    let api: Api<Lenient<K>> = Api::all(client.clone());
    let mut pages = Pages::of_size(wanted.0, wanted.1);
    let mut listed = Listed::default();
    for _ in 0..MAX_PAGES {
        let page = next_page(&api, &mut pages).await?;
        for seen in page.into_iter().flatten() {
            if let Ok(object) = seen.object {
                take(object);
            } else {
                if listed.unreadable == 0 {
                    let name = seen.metadata.name.unwrap_or_default();
                    shortened(&name, MAX_ROLE_LEN).clone_into(&mut listed.first);
                }
                listed.unreadable += 1;
            }
        }
        if pages.are_read() {
            listed.are_all = true;
            break;
        }
    }
    Ok(listed)
}

/// Whether a role with these rules permits approving requests for serving certificates. The API server checks the verb
/// `approve` for the signer, or for all signers in its domain.
fn permits(rules: &[PolicyRule]) -> bool {
    rules.iter().any(|rule| {
        let has = |list: &Option<Vec<String>>, wanted: &[&str]| {
            let mut list = list.iter().flatten();
            list.any(|one| wanted.contains(&one.as_str()))
        };
        let names = rule.resource_names.as_deref().unwrap_or_default();
        let domain = BUILT_IN_SERVING_SIGNER
            .split_once('/')
            .map(|(domain, _)| domain);
        let of_domain = format!("{}/*", domain.unwrap_or_default());
        rule.verbs
            .iter()
            .any(|verb| verb == "approve" || verb == "*")
            && has(&rule.api_groups, &["certificates.k8s.io", "*"])
            && has(&rule.resources, &["signers", "*"])
            && (names.is_empty()
                || names
                    .iter()
                    .any(|name| name == BUILT_IN_SERVING_SIGNER || *name == of_domain))
    })
}

/// The label value for a reason. The label values are limited, because an approver can write any text.
fn label(reason: &str) -> String {
    let letters = reason.chars().take(MAX_REASON_LEN);
    let is_kept = |letter: &char| letter.is_ascii_graphic() || *letter == ' ';
    let letters = letters.map(|letter| if is_kept(&letter) { letter } else { '_' });
    let text: String = letters.collect();
    if text.is_empty() {
        NONE.to_owned()
    } else {
        text
    }
}

fn named(binding: &ClusterRoleBinding) -> String {
    let subjects = binding.subjects.as_deref().unwrap_or_default();
    let named = subjects.iter().take(MAX_NAMED).map(subject);
    let more = subjects.len().saturating_sub(MAX_NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    let named: Vec<_> = named.chain(more).collect();
    let text = format!(
        "ClusterRoleBinding {} to {} ({})",
        binding.metadata.name.as_deref().unwrap_or_default(),
        binding.role_ref.name,
        named.join(", ")
    );
    shortened(&text, MAX_BINDING_LEN).to_owned()
}

fn subject(subject: &Subject) -> String {
    let Subject { kind, name, .. } = subject;
    match subject.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{kind} {namespace}/{name}"),
        Some(_) | None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests;
