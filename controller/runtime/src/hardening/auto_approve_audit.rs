//! Finds the open paths that bypass attestation.
//!
//! There are two checks, because each check misses cases that the other check finds. A `SubjectAccessReview` covers all
//! authorizers of the API server, but it can only be made for groups, so it does not find a binding to the single user
//! `system:bootstrap:abcdef`. A scan of the bindings finds that binding, but covers only RBAC.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::Api;
use kubelet_attestation::errors::shortened;
use tokio::time::{Instant, sleep};

use super::access::{HardeningError, call};
use super::bindings::{
    AUTHENTICATED, BOOTSTRAPPERS, Grant, Holder, KUBEADM_TOKENS, NODES, OpenBinding, Scan,
    UNAUTHENTICATED,
};
use crate::watch::reviewed;

/// The time for which a review can contradict the scan, because the authorizer watches bindings separately and can
/// detect a removal later.
const SETTLING: Duration = Duration::from_secs(3);

/// The interval between two reviews during this time.
const PAUSE: Duration = Duration::from_millis(100);

/// The maximum number of paths that the message lists.
const MAX_NAMED: usize = 10;

/// The maximum length of a path in the message, which is also stored in a condition. The limit allows three names with
/// the maximum length in Kubernetes. A tenant's API server can send longer names.
const MAX_PATH_LEN: usize = 1024;

/// A path that bypasses attestation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AutoApprovePath {
    /// A binding.
    Binding(OpenBinding),
    /// A permission for which the scan found no `ClusterRoleBinding`. A webhook or another authorizer grants the
    /// permission.
    Authorizer {
        /// The subject that has the permission.
        holder: Holder,
        /// The permission.
        grant: Grant,
    },
}

impl fmt::Display for AutoApprovePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (holder, grant) = match self {
            Self::Binding(open) => (&open.holder, open.grant),
            Self::Authorizer { holder, grant } => (holder, *grant),
        };
        let gain = match grant {
            Grant::NodeClient => "a certificate for any node",
            Grant::SelfNodeClient => "renewals of node certificates",
        };
        write!(f, "{holder} gets {gain} without evidence, ")?;
        match self {
            Self::Binding(open) => {
                write!(
                    f,
                    "through ClusterRoleBinding {} to {}",
                    open.name, open.role
                )?;
                f.write_str(if open.is_kubeadms {
                    " (set autoApproveBindings: Remove, or delete the binding)"
                } else {
                    " (delete the binding, or remove this subject from the binding)"
                })
            }
            Self::Authorizer { grant, .. } => write!(
                f,
                "through an authorizer other than RBAC (deny this subject the verb create on \
                 certificatesigningrequests/{})",
                grant.subresource()
            ),
        }
    }
}

/// The message for the condition `AutoApprovePathsClosed`, with each open path and its fix.
pub fn message(open: &[AutoApprovePath]) -> String {
    if open.is_empty() {
        return "no binding or authorizer approves requests without evidence".to_owned();
    }
    let named = open.iter().take(MAX_NAMED).map(|path| {
        let path = path.to_string();
        shortened(&path, MAX_PATH_LEN).to_owned()
    });
    let more = open.len().saturating_sub(MAX_NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    named.chain(more).collect::<Vec<_>>().join("; ")
}

/// Finds the open paths that bypass attestation. `scan` must be a recent scan of the bindings. An empty result means
/// that all paths are closed.
///
/// # Errors
///
/// Returns an error if a call to the API server failed, so the state is unknown.
pub async fn examine(client: &Client, scan: &Scan) -> Result<Vec<AutoApprovePath>, HardeningError> {
    let open = scan.open.iter().cloned();
    let mut ways: Vec<_> = open.map(AutoApprovePath::Binding).collect();
    for question in questions(scan) {
        if !question.is_explained(scan) && question.stays_allowed(client).await? {
            ways.push(AutoApprovePath::Authorizer {
                holder: Holder::Group(question.of.to_owned()),
                grant: question.grant,
            });
        }
    }
    ways.sort();
    Ok(ways)
}

/// A query for a review: whether a member of these groups has a permission.
struct Question {
    of: &'static str,
    /// A set, because a tenant's API server can have thousands of groups, and each open binding is looked up.
    groups: BTreeSet<String>,
    grant: Grant,
}

fn questions(scan: &Scan) -> [Question; 4] {
    let mut tokens = vec![BOOTSTRAPPERS, KUBEADM_TOKENS, AUTHENTICATED];
    tokens.extend(scan.token_groups.iter().map(String::as_str));
    let nodes = [NODES, AUTHENTICATED];
    let question = |of, groups: &[&str], grant| Question {
        of,
        groups: groups.iter().map(ToString::to_string).collect(),
        grant,
    };
    [
        question(BOOTSTRAPPERS, &tokens, Grant::NodeClient),
        question(NODES, &nodes, Grant::NodeClient),
        question(NODES, &nodes, Grant::SelfNodeClient),
        question(UNAUTHENTICATED, &[UNAUTHENTICATED], Grant::NodeClient),
    ]
}

impl Question {
    /// Whether a binding in the scan grants the permission.
    fn is_explained(&self, scan: &Scan) -> bool {
        scan.open.iter().any(|open| {
            open.grant == self.grant
                && matches!(&open.holder, Holder::Group(group) if self.groups.contains(group))
        })
    }

    async fn stays_allowed(&self, client: &Client) -> Result<bool, HardeningError> {
        let end = Instant::now() + SETTLING;
        while self.is_allowed(client).await? {
            if Instant::now() >= end {
                return Ok(true);
            }
            sleep(PAUSE).await;
        }
        Ok(false)
    }

    async fn is_allowed(&self, client: &Client) -> Result<bool, HardeningError> {
        let some = |text: &str| Some(text.to_owned());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                groups: Some(self.groups.iter().cloned().collect()),
                resource_attributes: Some(ResourceAttributes {
                    group: some("certificates.k8s.io"),
                    // The same attributes as in kube-controller-manager's reviews.
                    version: some("*"),
                    resource: some("certificatesigningrequests"),
                    subresource: some(self.grant.subresource()),
                    verb: some("create"),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(client.clone());
        let answer = reviewed(&api, &review);
        let answer = call("create subjectaccessreviews", answer).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_about_open_paths_has_a_limit() {
        let path = |len: usize| AutoApprovePath::Authorizer {
            holder: Holder::Group("g".repeat(len)),
            grant: Grant::NodeClient,
        };
        let short = message(&[path(253)]);
        assert!(
            short.ends_with("certificatesigningrequests/nodeclient)"),
            "{short}"
        );

        let long = message(&vec![path(1024 * 1024); MAX_NAMED + 1]);

        assert!(long.ends_with("; and 1 more"));
        assert!(
            long.len() < MAX_NAMED * (MAX_PATH_LEN + 2) + 16,
            "{}",
            long.len()
        );
    }
}
