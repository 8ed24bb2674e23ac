//! Determines the status of a `KubeletAuthentication`, without I/O.

pub(super) mod control_plane;
pub(super) mod not_ready;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kubelet_attestation::names::{BUILT_IN_SERVING_SIGNER, Provider};
use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_core::crd::{
    ALLOW_RETIREMENT_ANNOTATION, IdentityCounts, KubeletAuthentication, KubeletAuthenticationStatus,
};
use node_attestation_core::verifier::Findings;

use self::not_ready::NotReady;
use super::cluster_status::{ApiReachability, Health, LockedOut, ServiceAddressState};
use super::periodic::PartError;
use super::spec_mapping::counted;
use crate::capi::CaOutOfTime;
use crate::hardening::other_approvers::OtherApprovers;
use crate::keyless_signing::SIGNER_UNUSED;
use crate::metrics::{CONDITION_STATUSES, ClusterReport};

/// The phase of a cluster.
#[derive(Debug)]
pub(super) enum ClusterPhase {
    /// Not all objects have been read yet.
    Waiting,
    /// The controller does not serve the cluster's requests.
    Stopped(NotReady),
    /// The controller serves the cluster's requests.
    Serving {
        /// The reason why the CA cannot sign. `None` if it can sign.
        ca: Option<CaOutOfTime>,
        /// The findings of the last inspection.
        health: Box<Health>,
        /// The conditions that the verifiers report.
        attestors: Vec<ConditionReport>,
        /// The findings that the verifiers report.
        findings: Box<Findings>,
    },
}

/// The status of a cluster that is in this phase.
///
/// Conditions that belong to other controllers do not change. Conditions whose value is unknown do not change either,
/// because a restart or a new leader does not affect the cluster.
pub(super) fn status(
    authentication: &KubeletAuthentication,
    phase: &ClusterPhase,
    now: SystemTime,
) -> KubeletAuthenticationStatus {
    let mut status = authentication.status.clone().unwrap_or_default();
    let observed_generation = authentication.metadata.generation;
    let ready = ready(phase);
    if ready.is_some() {
        status.observed_generation = observed_generation;
    }
    // Only a wrong clock shows a time before the year -9999. Such a time is replaced with the Unix epoch.
    let now = Time(Timestamp::try_from(now).unwrap_or_default());
    let [reachable, closed] = of_workload_cluster(phase);
    for (of, report) in [
        (conditions::READY, ready),
        (conditions::WORKLOAD_CLUSTER_REACHABLE, reachable),
        (conditions::AUTO_APPROVE_PATHS_CLOSED, closed),
    ] {
        if let Some(report) = report.or_else(|| pending(of, &status)) {
            conditions::set(&mut status.conditions, &report, observed_generation, &now);
        }
    }
    for report in of_attestors(phase) {
        let is_known = report.reason != reason::PENDING;
        if is_known || conditions::find(&status.conditions, report.of).is_none() {
            conditions::set(&mut status.conditions, report, observed_generation, &now);
        }
    }
    if let ClusterPhase::Serving { health, .. } = phase {
        if let Some(unauthorized) = &health.unauthorized {
            let report = of_record_attestors(unauthorized);
            conditions::set(&mut status.conditions, &report, observed_generation, &now);
        }
        if let Some(locked_out) = &health.locked_out {
            let report = of_returning_nodes(locked_out, authentication);
            conditions::set(&mut status.conditions, &report, observed_generation, &now);
        }
        if let Some(approvers) = &health.approvers {
            let report = of_approvers(approvers);
            conditions::set(&mut status.conditions, &report, observed_generation, &now);
        }
        if let Some(services) = &health.services {
            let report = of_services(services);
            conditions::set(&mut status.conditions, &report, observed_generation, &now);
        }
        if health.identities.is_some() {
            status.identities = health.identities;
            // The API server stores whole seconds. With fractions of a second, the status would always differ from the
            // stored status.
            let seconds = |time| Timestamp::from_second(Timestamp::try_from(time)?.as_second());
            let earliest = health.earliest_expiry.map(seconds);
            status.earliest_expiry = earliest.and_then(Result::ok).map(Time);
        }
        let attestor = authentication.spec.authorized_attestors.first();
        let attestor = attestor.and_then(|name| Provider::parse(name).ok());
        status.kubelet_client_certificate_signer = attestor.as_ref().map(Provider::client_signer);
        let proves = attestor.is_some_and(|attestor| attestor != Provider::INSECURE);
        status.kubelet_serving_certificate_signer =
            proves.then(|| BUILT_IN_SERVING_SIGNER.to_owned());
    }
    status
}

/// Adds these objects, which cannot be read, to the condition `Ready`, if the cluster is not ready for another reason.
pub(super) fn name_unreadable(
    status: &mut KubeletAuthenticationStatus,
    (authentication, phase): (&KubeletAuthentication, &ClusterPhase),
    unreadable: impl Iterator<Item = String>,
    now: SystemTime,
) {
    let Some(mut report) = ready(phase).filter(|ready| ready.holds == ConditionStatus::False)
    else {
        return;
    };
    for text in unreadable {
        // The message of a served cluster lists failed tasks, and other messages can contain the name of the Cluster.
        let named = text.split(" (").next().unwrap_or_default();
        if !report.message.contains(named) {
            report.message.push_str("; ");
            report.message.push_str(&text);
        }
    }
    let now = Time(Timestamp::try_from(now).unwrap_or_default());
    let observed_generation = authentication.metadata.generation;
    conditions::set(&mut status.conditions, &report, observed_generation, &now);
}

/// The state of a cluster for its metrics, based on this phase and status.
pub(super) fn report_of(
    phase: &ClusterPhase,
    status: &KubeletAuthenticationStatus,
) -> ClusterReport {
    if let ClusterPhase::Stopped(NotReady::TooManyClusters(_)) = phase {
        // A tenant can create any number of these objects, so they are only counted.
        return ClusterReport {
            phase: "stopped",
            ..ClusterReport::default()
        };
    }
    let attestors = of_attestors(phase);
    let (findings, overdue, [exempt, overlaps]) = match phase {
        ClusterPhase::Serving {
            findings, health, ..
        } => (
            Findings::clone(findings),
            health.overdue,
            [health.exempt, health.overlaps],
        ),
        ClusterPhase::Waiting | ClusterPhase::Stopped(_) => (Findings::default(), None, [None; 2]),
    };
    let approvals = match phase {
        ClusterPhase::Serving { health, .. } => match &health.approvers {
            Some(Ok(found)) => found.by_known_reason(),
            Some(Err(_)) | None => BTreeMap::new(),
        },
        ClusterPhase::Waiting | ClusterPhase::Stopped(_) => BTreeMap::new(),
    };
    let phase = match phase {
        ClusterPhase::Waiting => "waiting",
        ClusterPhase::Stopped(_) => "stopped",
        ClusterPhase::Serving { .. } => "serving",
    };
    let of_cluster = [
        conditions::READY,
        conditions::WORKLOAD_CLUSTER_REACHABLE,
        conditions::AUTO_APPROVE_PATHS_CLOSED,
        conditions::RECORD_ATTESTORS_AUTHORIZED,
        conditions::SERVICE_RANGES_KNOWN,
        conditions::NODES_CAN_RETURN,
        conditions::CONTROL_PLANE_SUPPORTED,
        conditions::NO_OTHER_SERVING_APPROVER,
    ];
    // Conditions of other types belong to other controllers.
    let ours = attestors.iter().map(|report| report.of).chain(of_cluster);
    let ours: BTreeSet<&'static str> = ours.collect();
    let status_of = |of: &'static str| {
        let condition = conditions::find(&status.conditions, of)?;
        let mut statuses = CONDITION_STATUSES.into_iter();
        let (_, word) = statuses.find(|(status, _)| condition.status == *status)?;
        Some((of, word))
    };
    let identities = status.identities.as_ref();
    ClusterReport {
        phase,
        conditions: ours.into_iter().filter_map(status_of).collect(),
        records: identities.map(|count| (count.live, count.tombstones)),
        earliest_expiry: status
            .earliest_expiry
            .as_ref()
            .map(|time| SystemTime::from(time.0)),
        overdue,
        exempt,
        overlaps,
        approvals,
        expiring: findings.expiring.map(|first| first.at),
        unmeasured: findings.unmeasured,
    }
}

/// The conditions that the verifiers report in this phase.
fn of_attestors(phase: &ClusterPhase) -> &[ConditionReport] {
    match phase {
        ClusterPhase::Serving { attestors, .. } => attestors,
        ClusterPhase::Stopped(NotReady::NoAttestor { availability, .. }) => {
            std::slice::from_ref(availability)
        }
        ClusterPhase::Waiting | ClusterPhase::Stopped(_) => &[],
    }
}

/// The initial condition, until its value is known.
fn pending(of: &'static str, status: &KubeletAuthenticationStatus) -> Option<ConditionReport> {
    let first = conditions::find(&status.conditions, of).is_none();
    let message = "the controller has not checked the cluster yet";
    first.then(|| report(of, ConditionStatus::Unknown, reason::PENDING, message))
}

/// The condition `Ready`. `None` if its value is unknown.
fn ready(phase: &ClusterPhase) -> Option<ConditionReport> {
    let (reason, message) = match phase {
        ClusterPhase::Waiting => return None,
        ClusterPhase::Stopped(why) => (why.reason(), why.to_string()),
        ClusterPhase::Serving { ca: Some(why), .. } => (reason::CA_EXPIRED, out_of_time(*why)),
        ClusterPhase::Serving { health, .. } => match &health.answers {
            ApiReachability::Unknown => return None,
            ApiReachability::No(error) => (reason::UNREACHABLE, error.clone()),
            ApiReachability::Refused(error) => (reason::KUBECONFIG_WITHOUT_ACCESS, error.clone()),
            ApiReachability::Yes(_) if !health.missing.is_empty() => {
                let missing = health.missing.join(", ");
                let message = format!("the kubeconfig's user is not allowed to {missing}");
                (reason::KUBECONFIG_WITHOUT_ACCESS, message)
            }
            ApiReachability::Yes(version) if !version.hands_uids_on() => {
                let message = format!(
                    "the API server has version {}: Kubernetes before 1.33 does not forward certificate UIDs, so \
                     nodes can join but cannot renew",
                    version.name
                );
                (reason::KUBERNETES_TOO_OLD, message)
            }
            ApiReachability::Yes(_) => return Some(kept_up(health)),
        },
    };
    Some(not_ready(reason, message))
}

/// The message about a CA certificate that has expired or is not valid yet.
pub(super) fn out_of_time(why: CaOutOfTime) -> String {
    format!("{why}: the controller cannot sign certificates until the CA is replaced")
}

/// The condition `Ready` for a served cluster: whether the periodic work is complete.
fn kept_up(health: &Health) -> ConditionReport {
    let failed = health.failed.join("; ");
    let mut parts = vec!["serving requests".to_owned()];
    if let Some((gone, IdentityCounts { live, .. })) = health.held_back.zip(health.identities) {
        parts.push(format!(
            "the Machines of {gone} of {live} live node identities are missing, so the controller does not retire \
             these node identities. If these Machines are permanently deleted, allow the retirement: kubectl annotate \
             kubeletauthentication <name> {ALLOW_RETIREMENT_ANNOTATION}={gone}"
        ));
    }
    if !failed.is_empty() {
        parts.push(format!("these tasks failed: {failed}"));
    }
    if health.held_back.is_some() {
        not_ready(reason::MANY_MACHINES_MISSING, parts.join("; "))
    } else if failed.is_empty() {
        let message = if health.signer_unused {
            SIGNER_UNUSED
        } else {
            ""
        };
        report(
            conditions::READY,
            ConditionStatus::True,
            reason::READY,
            message,
        )
    } else {
        not_ready(reason::UPKEEP_INCOMPLETE, parts.join("; "))
    }
}

fn not_ready(reason: &'static str, message: String) -> ConditionReport {
    report(conditions::READY, ConditionStatus::False, reason, message)
}

/// Whether the workload cluster is reachable, and whether all paths that bypass attestation are closed. Each condition
/// is `None` if its value is unknown.
fn of_workload_cluster(phase: &ClusterPhase) -> [Option<ConditionReport>; 2] {
    use ConditionStatus::{False, True, Unknown};
    const REACHABLE: &str = conditions::WORKLOAD_CLUSTER_REACHABLE;
    const CLOSED: &str = conditions::AUTO_APPROVE_PATHS_CLOSED;
    let not_asked = |of| {
        report(
            of,
            Unknown,
            reason::PENDING,
            "the API server was not called",
        )
    };
    let health = match phase {
        ClusterPhase::Serving { health, .. } => health,
        ClusterPhase::Waiting => return [None, None],
        ClusterPhase::Stopped(_) => {
            return [REACHABLE, CLOSED].map(|of| Some(not_asked(of)));
        }
    };
    let reachable = match &health.answers {
        ApiReachability::Unknown => None,
        ApiReachability::No(error) => Some((False, reason::UNREACHABLE, error)),
        ApiReachability::Refused(error) => Some((False, reason::KUBECONFIG_WITHOUT_ACCESS, error)),
        ApiReachability::Yes(version) => Some((True, reason::REACHABLE, &version.name)),
    };
    let closed = match &health.paths {
        None if health.answers == ApiReachability::Unknown => None,
        None => Some(not_asked(CLOSED)),
        Some((found, message)) => {
            let (holds, reason) = found.condition();
            Some(report(CLOSED, holds, reason, message))
        }
    };
    let reachable =
        reachable.map(|(holds, reason, message)| report(REACHABLE, holds, reason, message));
    [reachable, closed]
}

/// Whether all attestation providers with live records are authorized.
fn of_record_attestors(unauthorized: &BTreeMap<String, usize>) -> ConditionReport {
    const AUTHORIZED: &str = conditions::RECORD_ATTESTORS_AUTHORIZED;
    if unauthorized.is_empty() {
        return report(AUTHORIZED, ConditionStatus::True, reason::AUTHORIZED, "");
    }
    let message = format!(
        "nodes cannot renew, because the attestor of their node identity is not authorized: {}. Move them to an \
         authorized attestor, replace their Machines, or authorize their attestor again. To list the nodes: \
         node-attestation-controller identities list",
        counted(unauthorized)
    );
    let reason = reason::ATTESTOR_NOT_AUTHORIZED;
    report(AUTHORIZED, ConditionStatus::False, reason, message)
}

/// Whether each node that needs a bootstrap token to rejoin has a valid token.
fn of_returning_nodes(
    locked_out: &LockedOut,
    authentication: &KubeletAuthentication,
) -> ConditionReport {
    const RETURN: &str = conditions::NODES_CAN_RETURN;
    let (named, count) = match locked_out {
        LockedOut::NotChecked => {
            return report(RETURN, ConditionStatus::True, reason::NOT_APPLICABLE, "");
        }
        LockedOut::Machines { count: 0, .. } => {
            return report(RETURN, ConditionStatus::True, reason::TOKENS_LIVE, "");
        }
        LockedOut::Machines { named, count } => (named, count),
    };
    let namespace = authentication.metadata.namespace.as_deref();
    let message = format!(
        "the nodes of {count} Machines need a bootstrap token to rejoin, but their tokens have expired: {}. Recreate the \
         tokens: node-attestation-controller tokens recreate {} -n {} {}",
        named.join(", "),
        authentication.spec.cluster_name,
        namespace.unwrap_or_default(),
        if *count > named.len() {
            "--all".to_owned()
        } else {
            named.join(" ")
        },
    );
    report(
        RETURN,
        ConditionStatus::False,
        reason::TOKENS_EXPIRED,
        message,
    )
}

/// Whether only this controller approves requests for serving certificates.
fn of_approvers(approvers: &Result<OtherApprovers, PartError>) -> ConditionReport {
    use ConditionStatus::{False, True, Unknown};
    let (holds, reason, message) = match approvers {
        Err(error) => (Unknown, reason::UNREACHABLE, error.to_string()),
        Ok(found) => {
            let (holds, reason) = if !found.approved.is_empty() {
                (False, reason::APPROVED_BY_OTHERS)
            } else if found.signed > 0 {
                (False, reason::SIGNED_BY_OTHERS)
            } else if !found.permitted.is_empty() {
                (False, reason::OTHERS_CAN_APPROVE)
            } else if found.unread.is_some() {
                (Unknown, reason::ROLES_UNREADABLE)
            } else {
                (True, reason::NONE_FOUND)
            };
            (holds, reason, found.to_string())
        }
    };
    report(
        conditions::NO_OTHER_SERVING_APPROVER,
        holds,
        reason,
        message,
    )
}

/// Whether the Service addresses are known.
fn of_services(services: &ServiceAddressState) -> ConditionReport {
    const KNOWN: &str = conditions::SERVICE_RANGES_KNOWN;
    const WAITING: &str = "requests for serving certificates with addresses stay pending, unless EC2 reports the addresses";
    let not_known = if services.are_known { "" } else { WAITING };
    let (reason, message) = match &services.unreadable {
        Some(entry) => {
            let mut message = format!(
                "an entry of spec.clusterNetwork.services.cidrBlocks of the Cluster is invalid: {entry:?}"
            );
            if !not_known.is_empty() {
                message.extend(["; ", not_known]);
            }
            (reason::SERVICE_RANGE_INVALID, message)
        }
        None if services.are_known => {
            return report(KNOWN, ConditionStatus::True, reason::KNOWN, "");
        }
        None => {
            let message = format!(
                "{not_known}: neither the Cluster (spec.clusterNetwork.services.cidrBlocks) nor the workload cluster \
                 (kubectl get servicecidrs) has the addresses of Services"
            );
            (reason::SERVICE_RANGES_UNKNOWN, message)
        }
    };
    report(KNOWN, ConditionStatus::False, reason, message)
}

fn report(
    of: &'static str,
    holds: ConditionStatus,
    reason: &'static str,
    message: impl Into<String>,
) -> ConditionReport {
    ConditionReport {
        of,
        holds,
        reason,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests;
