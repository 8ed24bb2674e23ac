//! The checks for one workload cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use kubelet_attestation::contract::{REQUEST_ABANDONED_AFTER, UNSUPPORTED_ATTESTATION_VERSION};
use kubelet_attestation::errors::shortened;
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, NodeName};
use node_attestation_core::crd::KubeletAuthenticationSpec;
use node_attestation_core::request::signers;
use node_attestation_core::time;
use node_attestation_core::verifier::{VerifierUnavailable, Verifiers};
use tokio::time::timeout;

use super::{Finding, some};
use crate::client::{CallError, call};
use crate::clock;
use crate::csr_writer::{DENIED, FAILED, has_condition};
use crate::explain::expiries;
use crate::hardening::{admission, auto_approve_audit, bindings, other_approvers};
use crate::management::spec_mapping::is_to_be_enforced;
use crate::pipeline::age;
use crate::preflight::{self, ServerVersion};
use crate::watch::{Lenient, MetadataOf, each_metadata_of, each_of, reviewed};

/// The deadline for reading the expiry times of certificates. It is shorter than the deadline of the check.
const EXPIRIES_WITHIN: Duration = Duration::from_secs(5);

/// The checks of this module, in order.
pub(super) const CHECKS: [&str; 9] = [
    "workload-version",
    "workload-rights",
    "workload-user",
    "auto-approval",
    "serving-approvers",
    "admission-policy",
    "nodes",
    "requests",
    "evidence-versions",
];

/// The age at which a pending CSR counts as slow. A CSR is usually answered within seconds, or within minutes if its
/// machine is not known yet.
const SLOW: Duration = Duration::from_mins(2);

/// The group that has all permissions, which no role can restrict.
const ADMINISTRATORS: &str = "system:masters";

/// The maximum length of a user name in a finding.
const MAX_USER_LEN: usize = 256;

/// The maximum number of names that a check keeps, and the maximum length of each. A tenant's API server can return any
/// number of objects, with names that are megabytes long.
const MAX_NAMES: usize = 10_000;
const MAX_NAME_LEN: usize = 253;

/// The label that kubeadm sets on control-plane Nodes.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// A workload cluster whose API server responds.
pub(super) struct Workload<'a> {
    pub(super) client: &'a Client,
    pub(super) spec: &'a KubeletAuthenticationSpec,
    /// The message of the condition about attestation providers for which the controller has no verifier.
    pub(super) unavailable: Option<&'a str>,
    /// Whether only the controller signs serving certificates.
    pub(super) signs_serving: bool,
}

impl Workload<'_> {
    pub(super) fn version(version: Info) -> Finding {
        let version = ServerVersion::from(version);
        let name = &version.name;
        if !version.hands_uids_on() {
            let what = format!("{name} does not forward certificate UIDs: renewals are denied");
            return Finding::fail(what, "upgrade Kubernetes to 1.33 or later");
        }
        Finding::pass(name.clone())
    }

    /// The signers whose CSRs the controller answers, including the signers of attestation providers that are currently
    /// unavailable.
    fn signers(&self) -> Vec<String> {
        self.signers_of(|_| true)
    }

    /// Whether this attestation provider is currently unavailable.
    fn is_unavailable(&self, attestor: &str) -> bool {
        let message = self.unavailable.unwrap_or_default();
        VerifierUnavailable::is_in(message, attestor)
    }

    fn signers_of(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let attestors = self.spec.authorized_attestors.iter();
        let attestors = attestors.filter(|name| is_wanted(name));
        // This command has no verifiers, and the signers of an attestation provider do not depend on its verifier.
        let verifiers: Verifiers = attestors
            .map(|name| Err(VerifierUnavailable::Unknown(name.clone())))
            .collect();
        signers(&verifiers)
    }

    pub(super) async fn rights(&self) -> Finding {
        const CURE: &str = "grant these permissions to the kubeconfig's user: kubectl apply -f \
            packaging/rbac/workload-cluster.yaml";
        let available = self.signers_of(|attestor| !self.is_unavailable(attestor));
        let required = preflight::required_rights(&available);
        // The controller does not use these permissions until the attestation provider is available.
        let mut optional = preflight::required_rights(&self.signers());
        optional.retain(|right| !required.contains(right));
        optional.extend(preflight::optional_rights());
        let required = preflight::missing(self.client, required).await;
        let optional = preflight::missing(self.client, optional).await;
        let (required, optional) = match (required, optional) {
            (Ok(required), Ok(optional)) => (required, optional),
            (Err(error), _) | (_, Err(error)) => {
                return Finding::failed(&error, "create selfsubjectaccessreviews");
            }
        };
        let missing = |rights: &[preflight::Right]| {
            let rights: Vec<_> = rights.iter().map(ToString::to_string).collect();
            format!("the kubeconfig's user is not allowed to: {}", some(&rights))
        };
        if !required.is_empty() {
            Finding::fail(missing(&required), CURE)
        } else if !optional.is_empty() {
            Finding::warn(missing(&optional), CURE)
        } else {
            Finding::pass("the kubeconfig's user is allowed to answer requests")
        }
    }

    /// Checks that the kubeconfig's user is not an administrator.
    pub(super) async fn user(&self) -> Finding {
        const CURE: &str = "give the controller its own kubeconfig: render workload-rights and render \
                            workload-secret, then set run --workload-access";
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review = SelfSubjectReview::default();
        let answer = call(reviewed(&reviews, &review)).await;
        let user = match answer {
            Ok(review) => review.status.and_then(|status| status.user_info),
            Err(error) => return Finding::failed(&error, "create selfsubjectreviews"),
        };
        let user = user.unwrap_or_default();
        let name = user.username.as_deref().unwrap_or("of unknown name");
        let name = shortened(name, MAX_USER_LEN);
        let mut groups = user.groups.iter().flatten();
        if groups.any(|group| group == ADMINISTRATORS) {
            let what = format!(
                "the kubeconfig's user {name} is in the group {ADMINISTRATORS}, which has all permissions"
            );
            return Finding::warn(what, CURE);
        }
        Finding::pass(format!("{name} is not in the group {ADMINISTRATORS}"))
    }

    /// Checks that kubelet certificates cannot be approved without evidence.
    pub(super) async fn ways_in(&self) -> Finding {
        let found = async {
            let scan = bindings::scan(self.client).await?;
            auto_approve_audit::examine(self.client, &scan).await
        };
        let open = match found.await {
            Ok(open) => open,
            Err(error) => {
                return Finding::failed(&error, "read clusterrolebindings and clusterroles");
            }
        };
        let what = auto_approve_audit::message(&open);
        if open.is_empty() {
            Finding::pass(what)
        } else if is_to_be_enforced(self.spec) {
            Finding::fail(what, "close each path as shown in parentheses")
        } else {
            let cure =
                "close each path as shown in parentheses, or set autoApproveBindings: Remove";
            Finding::warn(what, cure)
        }
    }

    /// Checks that only the controller approves serving certificates. If the controller also signs them in this
    /// cluster, checks that no other signer signs them.
    pub(super) async fn approvers(&self) -> Finding {
        let found = other_approvers::read(self.client).await;
        let found = found.map(|found| {
            if self.signs_serving {
                found.with_signers()
            } else {
                found
            }
        });
        match found {
            Ok(found) if found.is_empty() && found.unread.is_none() => {
                Finding::pass(found.to_string())
            }
            Ok(found) if found.signed > 0 => Finding::warn(
                found.to_string(),
                "remove the CA key from the other signer: for kube-controller-manager, leave \
                 --cluster-signing-cert-file and --cluster-signing-key-file empty",
            ),
            Ok(found) => Finding::warn(
                found.to_string(),
                "compare the approvals with the audit log, then remove the other approver",
            ),
            Err(error) => Finding::failed(
                &error,
                "list certificatesigningrequests, clusterroles and clusterrolebindings",
            ),
        }
    }

    pub(super) async fn policy(&self) -> Finding {
        match admission::is_enforced(self.client).await {
            Ok(is_enforced) => enforcement(is_enforced, is_to_be_enforced(self.spec)),
            Err(error) => {
                Finding::failed(&error, "get validatingadmissionpolicies and their bindings")
            }
        }
    }

    /// Checks that every Node can renew after attestation is enforced, because it has a record or an exemption.
    /// `recorded` is `None` if the records could not be read.
    pub(super) async fn nodes(&self, recorded: Option<&BTreeSet<String>>) -> Finding {
        let Some(recorded) = recorded else {
            return Finding::skip("cannot read the node identities");
        };
        let listed = self.spec.exempt();
        let (mut count, mut exempt, mut others) = (0_usize, Vec::new(), Vec::new());
        let api: Api<MetadataOf<Node>> = Api::all(self.client.clone());
        let read = each_metadata_of(&api, ListParams::default(), |node| {
            count += 1;
            let name = node.name_any();
            if recorded.contains(&name) {
                return;
            }
            // The controller exempts the Nodes of control-plane Machines, but this check knows only the labels of the
            // Nodes.
            let is_control_plane = node.labels().contains_key(CONTROL_PLANE);
            let is_exempt = NodeName::parse(&name)
                .is_ok_and(|name| listed.of(&name, is_control_plane).is_some());
            keep(if is_exempt { &mut exempt } else { &mut others }, &name);
        });
        if let Err(error) = read.await {
            return Finding::failed(&error, "list nodes");
        }
        if others.is_empty() && exempt.is_empty() {
            Finding::pass(format!("{count}, each with a node identity"))
        } else if others.is_empty() {
            let exempt = some(&exempt);
            Finding::pass(format!(
                "{count}; exempt Nodes without a node identity: {exempt}{}",
                if listed.has_control_plane() {
                    " (ControlPlane exempts only Nodes of control-plane Machines)"
                } else {
                    ""
                }
            ))
        } else {
            // The expiry is only a detail. An error in reading it must not replace the finding.
            let known = expiries::expiries(self.client);
            let known = timeout(EXPIRIES_WITHIN, Box::pin(known)).await;
            let known = known.ok().and_then(Result::ok).unwrap_or_default();
            let expiry = expiry_of(&others, &known);
            Finding::warn(
                format!("Nodes without a node identity: {}; {expiry}", some(&others)),
                format!(
                    "they joined without attestation: adopt them (spec.adoption), replace them, or exempt them \
                     (spec.exemptNodes); on a node, this command shows the expiry: {}",
                    expiries::ON_THE_NODE
                ),
            )
        }
    }

    async fn each_request(
        &self,
        mut take: impl FnMut(&CertificateSigningRequest),
    ) -> Result<(), CallError> {
        let api: Api<Lenient<CertificateSigningRequest>> = Api::all(self.client.clone());
        // While attestation is not enforced, the controller does not answer requests to the built-in client signer.
        let signers = self.signers().into_iter();
        for signer in signers.filter(|signer| signer != BUILT_IN_CLIENT_SIGNER) {
            let wanted = ListParams::default().fields(&format!("spec.signerName={signer}"));
            let take = |one: Lenient<CertificateSigningRequest>| {
                if let Ok(request) = &one.object {
                    take(request);
                }
            };
            each_of(&api, wanted, take).await?;
        }
        Ok(())
    }

    /// Checks that no CSR has been pending for a long time.
    pub(super) async fn requests(&self) -> Finding {
        let (now, mut pending) = (clock::now(), 0_usize);
        let mut longest: Option<(Duration, String)> = None;
        let read = self.each_request(|request| {
            if is_pending(request) {
                pending += 1;
                let name = shortened(&request.name_any(), MAX_NAME_LEN).to_owned();
                longest = longest.take().max(Some((age(request, now), name)));
            }
        });
        if let Err(error) = read.await {
            return Finding::failed(&error, "list certificatesigningrequests");
        }
        let Some((oldest, name)) = longest else {
            return Finding::pass("none is pending");
        };
        let what = format!(
            "pending requests: {pending}; {name} has waited for {} s",
            oldest.as_secs()
        );
        let cure = format!("run: node-attestation-controller explain {name} --cluster CLUSTER");
        if oldest > REQUEST_ABANDONED_AFTER {
            Finding::fail(what, cure)
        } else if oldest > SLOW {
            Finding::warn(what, cure)
        } else {
            Finding::pass(what)
        }
    }

    /// Checks that no node sends evidence in a version that the controller does not support.
    pub(super) async fn evidence_versions(&self) -> Finding {
        let mut unsupported = Vec::new();
        let read = self.each_request(|request| {
            let status = request.status.iter();
            let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
            let reason = Some(UNSUPPORTED_ATTESTATION_VERSION);
            if conditions.any(|one| one.type_ == FAILED && one.reason.as_deref() == reason) {
                keep(&mut unsupported, &request.name_any());
            }
        });
        if let Err(error) = read.await {
            return Finding::failed(&error, "list certificatesigningrequests");
        }
        if unsupported.is_empty() {
            Finding::pass("the controller supports the evidence versions of all requests")
        } else {
            Finding::warn(
                format!(
                    "requests with an unsupported evidence version: {}",
                    some(&unsupported)
                ),
                "upgrade the controller before the plugin",
            )
        }
    }
}

/// Adds the name, unless there are too many names.
fn keep(names: &mut Vec<String>, name: &str) {
    if names.len() < MAX_NAMES {
        names.push(shortened(name, MAX_NAME_LEN).to_owned());
    }
}

/// The known expiry times of these Nodes' certificates. These Nodes cannot renew after attestation is enforced.
fn expiry_of(nodes: &[String], known: &BTreeMap<String, SystemTime>) -> String {
    if nodes.iter().all(|node| !known.contains_key(node)) {
        return "the expiry of their certificates is unknown".to_owned();
    }
    let ends = nodes.iter().map(|node| {
        let end = known.get(node).copied().map(time::text);
        format!("{node} {}", end.as_deref().unwrap_or("unknown"))
    });
    let ends: Vec<_> = ends.collect();
    format!("their certificates expire: {}", some(&ends))
}

/// The finding about the admission policy.
fn enforcement(is_enforced: bool, is_to_be_enforced: bool) -> Finding {
    match (is_enforced, is_to_be_enforced) {
        (true, _) => Finding::pass("attestation is enforced"),
        (false, true) => Finding::warn(
            "attestation is not enforced yet (autoApproveBindings: Remove)",
            "wait; the condition AutoApprovePathsClosed of the KubeletAuthentication has the cause",
        ),
        (false, false) => Finding::warn(
            "attestation is not enforced (autoApproveBindings: Report)",
            "set autoApproveBindings: Remove",
        ),
    }
}

fn is_pending(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    let certificate = status.and_then(|status| status.certificate.as_ref());
    certificate.is_none_or(|certificate| certificate.0.is_empty())
        && !has_condition(request, DENIED)
        && !has_condition(request, FAILED)
}

#[cfg(test)]
mod tests;
