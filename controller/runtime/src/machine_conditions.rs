//! The condition [`NODE_ATTESTED`] on Machines: whether the machine has a certificate from this controller and, if not,
//! why its requests are refused.
//!
//! # Contract
//!
//! - The condition is `True` after the machine gets its certificate. The reason shows whether the machine was attested.
//!   After that, the condition becomes `False` only if the node's own renewal is denied, or if its certificates are
//!   revoked. A request with a bootstrap token does not change the condition: otherwise, an attacker with the token
//!   could cause the Machine to be replaced. A node that claims another node's machine does not change the condition
//!   either.
//! - Before that, the condition is `False` after a denial, and `Unknown` while a request is pending or after a request
//!   failed. Therefore an outage of a service that the controller calls never makes the condition `False`.
//! - If a restart prevents writing an outcome, the next round determines the outcome from the record and the Machine's
//!   Node. If that is not possible, the next renewal writes the outcome. The next request also reports a refusal again.
//! - A refusal that the condition already contains is not written again. A different refusal for the same machine is
//!   written after at least one minute.

use std::collections::BTreeMap;
use std::error::Error;
use std::mem;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::ApiResource;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::{NODE_USER_PREFIX, NodeName, Provider};
use node_attestation_core::crd::conditions::ConditionStatus;
use node_attestation_core::decide::Decision;
use node_attestation_core::ledger::Record;
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::Failure;
use node_attestation_core::request::ApprovalReason;
use node_attestation_core::unshared::Unshared;
use serde_json::json;

use crate::capi::{Attested, KnownMachine, condition_digest};
use crate::client::CONTROLLER;
use crate::events::reason;
use crate::watch::{Custom, NoFields, patched_status};

/// The type of the condition.
pub use crate::capi::NODE_ATTESTED;

/// The deadline for one write, including the lookup of the kind.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// The shared rate of writes for all clusters: if 1,000 machines join together, all of them get the condition within 30
/// seconds.
pub(crate) const RATE: Rate = Rate {
    burst: 200,
    every: Duration::from_millis(25),
};

/// For each cluster, the maximum number of machines whose condition is waiting to be written.
const MAX_WAITING: usize = 4096;

/// The maximum length of a message. A longer message is truncated.
const MAX_MESSAGE_LEN: usize = 512;

/// The outcome of a machine's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The machine has its certificate.
    Granted {
        /// Whether the machine was attested. `false` if the provider is `insecure`.
        evidence: bool,
    },
    /// The certificates of the machine were revoked.
    Revoked,
    /// A request from the machine was refused or deferred.
    Refused {
        reason: &'static str,
        message: String,
        /// The node that sent the request with its own certificate. `None` if the request used a bootstrap token.
        node: Option<NodeName>,
        /// Whether the request was denied.
        denied: bool,
    },
}

/// The condition to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineCondition {
    pub(crate) status: ConditionStatus,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) since: SystemTime,
}

impl Outcome {
    /// The outcome of a decision on a request for a client certificate. `None` if the decision does not concern the
    /// machine.
    pub(crate) fn of(request: &CertificateSigningRequest, decision: &Decision) -> Option<Self> {
        let granted = |approval_reason| {
            let evidence = request.spec.signer_name != Provider::INSECURE.client_signer();
            (approval_reason == ApprovalReason::NodeNameClaimed)
                .then_some(Self::Granted { evidence })
        };
        let error: &dyn Error = match decision {
            Decision::Issue(issued) => return granted(issued.approval_reason),
            Decision::Approve(approval) => return granted(approval.approval_reason()),
            // A challenge is only the first step of a join.
            Decision::Ignore(_) | Decision::Fail(Failure::ChallengeIssued { .. }) => {
                return None;
            }
            Decision::Deny(denial) => denial,
            Decision::Fail(failure) => failure,
            Decision::Retry(deferral) => deferral,
        };
        let user = request.spec.username.as_deref().unwrap_or_default();
        let node = user.strip_prefix(NODE_USER_PREFIX);
        Some(Self::Refused {
            reason: reason(decision),
            message: cut(error_chain(error)),
            node: node.map(NodeName::parse).transpose().ok()?,
            denied: matches!(decision, Decision::Deny(_)),
        })
    }

    /// The outcome according to a live record and the Machine. `None` if the condition already contains this outcome.
    ///
    /// This includes a machine that has joined with the record's node name, and a machine whose certificates were
    /// revoked.
    pub(crate) fn of_record(record: &Record, machine: KnownMachine<'_>) -> Option<Self> {
        if !record.is_live() || record.holder.provider_id != *machine.provider_id {
            return None;
        }
        let held = machine.attested.is_some_and(is_true);
        if record.is_revoked() {
            return held.then_some(Self::Revoked);
        }
        let evidence = record.holder.is_attested();
        let (reason, message) = granted(evidence);
        let is_former = |known: Attested| {
            if is_true(known) {
                known.condition_digest != condition_digest(reason, message)
            } else {
                known.since < record.opened.time
            }
        };
        let has_joined = machine.node == Some(&record.node_name);
        let untold = machine.attested.is_none_or(is_former);
        (has_joined && untold).then_some(Self::Granted { evidence })
    }

    /// The condition to write, based on the `known` condition. `None` if the condition does not change.
    pub(crate) fn condition(
        &self,
        known: Option<Attested>,
        now: SystemTime,
    ) -> Option<MachineCondition> {
        use ConditionStatus::{False, True, Unknown};
        let held = known.is_some_and(is_true);
        let (status, reason, message) = match self {
            Self::Granted { evidence } => {
                let (reason, message) = granted(*evidence);
                (True, reason, message.to_owned())
            }
            Self::Revoked => {
                let message = "the node's certificates were revoked";
                (False, "CertificatesRevoked", message.to_owned())
            }
            Self::Refused { node, denied, .. } if held && (node.is_none() || !denied) => {
                return None;
            }
            // Otherwise, a denied machine could prevent its replacement by sending a request that fails, because each
            // change to the status restarts the timeout of a MachineHealthCheck.
            Self::Refused { denied: false, .. }
                if known.is_some_and(|known| known.status == False) =>
            {
                return None;
            }
            Self::Refused {
                reason,
                message,
                denied,
                ..
            } => {
                let status = if *denied { False } else { Unknown };
                (status, *reason, message.clone())
            }
        };
        let same = known.filter(|known| known.status == status);
        if same.is_some_and(|known| known.condition_digest == condition_digest(reason, &message)) {
            return None;
        }
        Some(MachineCondition {
            status,
            reason,
            message,
            since: same.map_or(now, |known| known.since),
        })
    }

    /// Whether `other`, which is already waiting to be written, takes precedence over this outcome. A request with a
    /// token must not hide an issued certificate or a denied renewal.
    fn yields_to(&self, other: &Self) -> bool {
        let is_by_token = |one: &Self| matches!(one, Self::Refused { node: None, .. });
        is_by_token(self) && !is_by_token(other)
    }
}

/// Whether the machine has its certificate.
fn is_true(known: Attested) -> bool {
    known.status == ConditionStatus::True
}

/// The reason and the message of the condition for a machine that has a certificate.
fn granted(evidence: bool) -> (&'static str, &'static str) {
    if evidence {
        let message =
            "the controller verified the evidence of the machine, and granted the certificate";
        ("Attested", message)
    } else {
        let message =
            "the controller granted the certificate without evidence, with the attestor insecure";
        ("JoinedWithoutEvidence", message)
    }
}

fn cut(mut message: String) -> String {
    let mut end = message.len().min(MAX_MESSAGE_LEN);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message
}

/// For each machine UID in one cluster, the last outcome that has not been written yet.
///
/// Only Machines in the inventory are added. Therefore, there is at most one outcome for each Machine in all clusters,
/// which takes less memory than the Machine object.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(Unshared<BTreeMap<String, (ObjectReference, Outcome)>>);

impl Outcomes {
    /// Adds an outcome, and replaces the machine's earlier outcome. Drops outcomes for objects other than Machines. If
    /// too many outcomes are waiting, also drops refusals.
    pub(crate) fn add(&self, machine: &ObjectReference, outcome: Outcome) {
        let Some(uid) = uid_of(machine) else { return };
        let mut waiting = self.0.lock();
        let earlier = waiting.get(uid);
        if earlier.is_some_and(|(_, earlier)| outcome.yields_to(earlier)) {
            return;
        }
        if earlier.is_none() && waiting.len() >= MAX_WAITING {
            let refused = waiting.iter().find(|(_, (_, one))| is_refusal(one));
            match refused.map(|(uid, _)| uid.clone()) {
                Some(refused) if !is_refusal(&outcome) => waiting.remove(&refused),
                _ => return,
            };
        }
        waiting.insert(uid.to_owned(), (machine.clone(), outcome));
    }

    /// Adds an outcome, unless a later outcome for the machine is waiting.
    pub(crate) fn add_former(&self, machine: &ObjectReference, outcome: Outcome) {
        let Some(uid) = uid_of(machine) else { return };
        if !self.0.lock().contains_key(uid) {
            self.add(machine, outcome);
        }
    }

    /// Removes and returns all outcomes. Refusals are last.
    pub(crate) fn take_all(&self) -> Vec<(ObjectReference, Outcome)> {
        let waiting = mem::take(&mut *self.0.lock());
        let mut waiting: Vec<_> = waiting.into_values().collect();
        waiting.sort_by_key(|(_, outcome)| is_refusal(outcome));
        waiting
    }
}

pub(crate) fn is_refusal(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused { .. })
}

pub(crate) fn uid_of(machine: &ObjectReference) -> Option<&str> {
    let is_machine = machine.kind.as_deref() == Some("Machine");
    machine.uid.as_deref().filter(|_| is_machine)
}

/// Writes the condition of a Machine. An object with the same name and a different UID is not changed.
///
/// In API version v1beta1, the condition is in `status.v1beta2`, where Cluster API stores conditions in this format.
pub(crate) async fn write(
    management: &Client,
    resource: &ApiResource,
    machine: &ObjectReference,
    condition: &MachineCondition,
) -> kube::Result<()> {
    let namespace = machine.namespace.as_deref().unwrap_or_default();
    let name = machine.name.as_deref().unwrap_or_default();
    let api: Api<Custom<NoFields>> = Api::namespaced_with(management.clone(), namespace, resource);
    let since = Timestamp::try_from(condition.since).unwrap_or_default();
    let conditions = json!({ "conditions": [{
        "type": NODE_ATTESTED,
        "status": condition.status.to_string(),
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": Time(since),
    }] });
    let status = if resource.version == "v1beta1" {
        json!({ "v1beta2": conditions })
    } else {
        conditions
    };
    let applied = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": { "name": name, "uid": machine.uid },
        "status": status,
    });
    let parameters = PatchParams::apply(CONTROLLER).force();
    let patch = Patch::Apply(&applied);
    Box::pin(patched_status(&api, name, &parameters, &patch)).await
}

#[cfg(test)]
mod tests;
