//! The command `cluster check`: checks the management cluster and its Clusters, or one cluster without a management
//! cluster.
//!
//! # Guarantees
//!
//! - Every check runs regardless of the results of other checks, and has a deadline.
//! - The command does not write anything.
//! - Findings do not contain secrets.

use std::path::Path;
use std::time::Duration;

use futures::future::{FutureExt as _, LocalBoxFuture, join_all};
use kube::Client;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::page_url;
use serde::Serialize;
use tokio::time::timeout;

use crate::capi::ObjectKey;
use crate::client::{ClusterAccess, EgressPolicy};
use crate::cluster_states::{self, ClusterState};
use crate::settings_file;
use crate::standalone::refusal;

mod management;
mod one_cluster;
mod predictions;
mod secrets;
mod workload;

pub use predictions::predict;

/// The deadline for one check.
const DEADLINE: Duration = Duration::from_secs(10);

/// The maximum length of a finding. Findings are printed on a terminal, and a tenant can operate a workload API server.
const MAX_LEN: usize = 16 * 1024;

/// The page that describes the checks. Each check has an anchor with its name.
const PAGE: &str = page_url!("cluster-check.md#check-");

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No problem was found.
    Pass,
    /// The cluster works now, but its state can cause a failure later. The state might also be intended.
    Warn,
    /// Nodes cannot join or renew, or can join without evidence.
    Fail,
    /// The check could not run.
    Skip,
}

impl State {
    /// The name of the result.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// A check, with its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Checked {
    /// The Cluster. `None` for the management cluster, or if there is only one cluster.
    pub cluster: Option<String>,
    /// The name of the check.
    pub name: &'static str,
    /// The result.
    pub state: State,
    /// The finding: the error with its causes, if the check fails.
    pub finding: String,
    /// The suggested fix. Empty if no action is necessary.
    pub cure: String,
    /// The link to the page about the check.
    pub link: String,
}

/// The finding of a check.
#[derive(Debug, Clone, PartialEq)]
struct Finding {
    state: State,
    what: String,
    cure: String,
}

impl Finding {
    fn pass(what: impl Into<String>) -> Self {
        Self::of(State::Pass, what, "")
    }

    fn warn(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::of(State::Warn, what, cure)
    }

    fn fail(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::of(State::Fail, what, cure)
    }

    fn skip(why: impl Into<String>) -> Self {
        Self::of(State::Skip, why, "")
    }

    fn of(state: State, what: impl Into<String>, cure: impl Into<String>) -> Self {
        let bounded = |mut text: String| {
            text.truncate(text.floor_char_boundary(MAX_LEN));
            text
        };
        Self {
            state,
            what: bounded(what.into()),
            cure: bounded(cure.into()),
        }
    }

    /// The finding for a failed call that requires this permission.
    fn failed(error: &dyn std::error::Error, right: &str) -> Self {
        let cure = format!(
            "your user needs the permission to {right}; if your user has the permission, see the error"
        );
        Self::fail(error_chain(error), cure)
    }

    fn checked(self, cluster: Option<&ObjectKey>, name: &'static str) -> Checked {
        Checked {
            cluster: cluster.map(ToString::to_string),
            name,
            state: self.state,
            finding: self.what,
            cure: self.cure,
            link: format!("{PAGE}{name}"),
        }
    }
}

/// The finding about a Cluster with this `KubeletAuthentication`, which is not served for this reason.
#[cfg(test)]
pub(crate) fn finding_about(
    authentication: node_attestation_core::crd::KubeletAuthentication,
    not_ready: Option<String>,
) -> (State, String) {
    let state = ClusterState {
        namespace: "tenant-a".to_owned(),
        name: "prod-1".to_owned(),
        kubelet_authentication: Some(authentication),
        unreadable: None,
    };
    let finding = one_cluster::authentication(&state, not_ready);
    (finding.state, finding.what)
}

/// Runs a check within its deadline.
fn within<'a>(check: impl Future<Output = Finding> + 'a) -> LocalBoxFuture<'a, Finding> {
    let checked = timeout(DEADLINE, check);
    let checked = checked.map(|found| {
        found.unwrap_or_else(|_| {
            let what = format!("no response within {} s", DEADLINE.as_secs());
            Finding::fail(what, "check the network connection to the API server")
        })
    });
    checked.boxed_local()
}

/// The first names in a list, and the number of other names.
fn some(names: &[String]) -> String {
    const MAX: usize = 5;
    let first: Vec<_> = names.iter().take(MAX).map(String::as_str).collect();
    match names.len().saturating_sub(MAX) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Checks the management cluster, and either this Cluster or all Clusters, with the permissions of the user in
/// `management`. If the controller's namespace contains the controller's own kubeconfig for a Cluster, the checks use
/// it instead of Cluster API's kubeconfig.
pub async fn check(
    management: &ClusterAccess,
    only: Option<&ObjectKey>,
    egress: EgressPolicy,
    controller_namespace: &str,
) -> Vec<Checked> {
    let mut checked = Box::pin(management::checks(management)).await;
    let states = cluster_states::list(management, only.map(|key| key.namespace.as_str()));
    let states = match timeout(DEADLINE, states).await {
        Ok(Ok(states)) => states,
        Ok(Err(error)) => {
            let finding = Finding::failed(&error, "list clusters and kubeletauthentications");
            checked.push(finding.checked(only, "clusters"));
            return checked;
        }
        Err(_) => {
            let finding = Finding::fail("no response in time", "");
            checked.push(finding.checked(only, "clusters"));
            return checked;
        }
    };
    let key = |state: &ClusterState| ObjectKey::new(&*state.namespace, &*state.name);
    let chosen: Vec<_> = states
        .into_iter()
        .filter(|state| only.is_none_or(|only| key(state) == *only))
        .collect();
    let clusters = match (chosen.is_empty(), only) {
        (true, Some(only)) => Finding::fail(
            format!("Cluster {only} does not exist"),
            "list the Clusters: node-attestation-controller clusters",
        ),
        (true, None) => Finding::warn("no Cluster exists", "create a Cluster"),
        (false, _) => Finding::pass(format!("{} read", chosen.len())),
    };
    checked.push(clusters.checked(None, "clusters"));
    let each = chosen.iter().map(|state| async move {
        let key = key(state);
        let how = (egress, controller_namespace);
        Box::pin(one_cluster::checks(management, &key, state, how)).await
    });
    checked.extend(join_all(each).await.into_iter().flatten());
    checked
}

/// Checks the settings of a controller without a management cluster. If a kubeconfig is given, also checks its workload
/// cluster with the permissions of the kubeconfig's user.
pub async fn check_settings(file: &Path, workload: Option<ClusterAccess>) -> Vec<Checked> {
    let authentication = match settings_file::read(file) {
        Ok(authentication) => authentication,
        Err(error) => {
            let finding = Finding::fail(
                error_chain(&error),
                "correct each field that the finding lists",
            );
            return vec![finding.checked(None, "settings")];
        }
    };
    let spec = &authentication.spec;
    let attestors = spec.authorized_attestors.join(", ");
    let what = format!("valid; {} authorizes {attestors}", spec.cluster_name);
    let mut findings = vec![("settings", Finding::pass(what))];
    if let Some(access) = workload {
        let client = access.client().clone();
        findings.push((
            "identities",
            within(records(&client, &spec.cluster_name)).await,
        ));
        let of_workload = one_cluster::of_workload(Ok((access, None)), spec, None, (None, false));
        let of_workload = Box::pin(of_workload).await;
        // These checks require a controller with a management cluster, because only such a controller installs the
        // policies, and compares the Nodes with the records.
        let is_of_management = |name| ["admission-policy", "nodes"].contains(&name);
        findings.extend(
            of_workload
                .into_iter()
                .filter(|(name, _)| !is_of_management(*name)),
        );
    }
    let findings = findings.into_iter();
    findings
        .map(|(name, finding)| finding.checked(None, name))
        .collect()
}

/// Checks that a controller without a management cluster can store its records in the workload cluster.
async fn records(client: &Client, cluster: &str) -> Finding {
    match refusal(client, cluster).await {
        Ok(None) => Finding::pass("the workload cluster can store node identities"),
        Ok(Some(refused)) => Finding::fail(refused.to_string(), refused.cure()),
        Err(error) => Finding::failed(&error, "list nodeidentities"),
    }
}

#[cfg(test)]
mod tests;
