//! The condition [`NODE_ATTESTED`] of Machines: whether the machine has a certificate of this controller, and otherwise why
//! its requests are refused.
//!
//! # Contract
//!
//! - It is `True` once the machine has its certificate, with a reason that tells whether it proved its identity. A request that a bootstrap token files never takes that away: a
//!   Machine whose readiness gates have the condition would be replaced by whoever has the token. Nor does a node that
//!   claims another's machine.
//! - Afterwards it is `False` if the node's own renewal is denied, or if its certificates are revoked.
//! - An outcome that was not written, by a restart, is found by the record and the Node of the Machine in the next round, and at the
//!   latest written with the next renewal. A refusal is told again by the next request.
//! - A refusal that is told already is not written again, and another one of the same machine a minute later at the
//!   earliest.

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
use node_attestation_core::decide::Decision;
use node_attestation_core::ledger::Record;
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::Failure;
use node_attestation_core::request::ApprovalReason;
use parking_lot::Mutex;
use serde_json::json;

use crate::capi::{Attested, KnownMachine, told};
use crate::client::{CONTROLLER, CallError, in_time};
use crate::events::reason;
use crate::watch::{Custom, NoFields};

/// The condition's type.
pub use crate::capi::NODE_ATTESTED;

/// Deadline of one write.
const DEADLINE: Duration = Duration::from_secs(2);

/// The rate of the writes of all clusters together: a thousand machines that join at once have it within half a minute.
pub(crate) const RATE: Rate = Rate {
    burst: 200,
    every: Duration::from_millis(25),
};

/// The limit of machines of one cluster whose condition waits to be written.
const MAX_WAITING: usize = 4096;

/// The length at which messages are cut.
const MAX_MESSAGE_LEN: usize = 512;

/// The outcome of a machine's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has its certificate.
    Granted {
        /// Whether it proved its identity: with `insecure`, it did not.
        evidence: bool,
    },
    /// Its certificates were taken back.
    Revoked,
    /// A request of it was refused, or waits.
    Refused {
        reason: &'static str,
        message: String,
        /// The node that asked with its certificate; `None` if a bootstrap token did.
        node: Option<NodeName>,
        /// Whether it was denied.
        denied: bool,
    },
}

/// The condition to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) holds: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) since: SystemTime,
}

impl Outcome {
    /// The outcome of a decision on a request for a client certificate; `None` if it says nothing of the machine.
    pub(crate) fn of(request: &CertificateSigningRequest, decision: &Decision) -> Option<Self> {
        let granted = |basis| {
            let evidence = request.spec.signer_name != Provider::INSECURE.client_signer();
            (basis == ApprovalReason::NodeNameClaimed).then_some(Self::Granted { evidence })
        };
        let error: &dyn Error = match decision {
            Decision::Issue(issued) => return granted(issued.basis),
            Decision::Approve(approval) => return granted(approval.basis()),
            // A challenge is half of a join.
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

    /// The outcome of which a live record and the Machine tell, if the condition tells of another: of a machine whose Node is
    /// there, under the name of the record, and of one whose certificates were revoked.
    pub(crate) fn of_record(record: &Record, machine: KnownMachine<'_>) -> Option<Self> {
        if !record.is_live() || record.holder.provider_id != *machine.provider_id {
            return None;
        }
        let held = machine.attested.is_some_and(|known| known.holds);
        if record.is_revoked() {
            return held.then_some(Self::Revoked);
        }
        let evidence = record.holder.is_attested();
        let (reason, message) = granted(evidence);
        let is_former = |known: Attested| {
            if known.holds {
                known.told != told(reason, message)
            } else {
                known.since < record.opened.time
            }
        };
        let has_joined = machine.node == Some(&record.node_name);
        let untold = machine.attested.is_none_or(is_former);
        (has_joined && untold).then_some(Self::Granted { evidence })
    }

    /// The condition that follows from `known`; `None` if that stays.
    pub(crate) fn condition(&self, known: Option<Attested>, now: SystemTime) -> Option<Condition> {
        let held = known.is_some_and(|known| known.holds);
        let (holds, reason, message) = match self {
            Self::Granted { evidence } => {
                let (reason, message) = granted(*evidence);
                (true, reason, message.to_owned())
            }
            Self::Revoked => {
                let message = "the node's certificates were revoked";
                (false, "CertificatesRevoked", message.to_owned())
            }
            Self::Refused { node, denied, .. } if held && (node.is_none() || !denied) => {
                return None;
            }
            Self::Refused {
                reason, message, ..
            } => (false, *reason, message.clone()),
        };
        let same = known.filter(|known| known.holds == holds);
        if same.is_some_and(|known| known.told == told(reason, &message)) {
            return None;
        }
        Some(Condition {
            holds,
            reason,
            message,
            since: same.map_or(now, |known| known.since),
        })
    }

    /// Whether this one gives way to `other`, which waits already: no token may keep a certificate from being told, or the
    /// denial of a renewal.
    fn yields_to(&self, other: &Self) -> bool {
        let is_by_token = |one: &Self| matches!(one, Self::Refused { node: None, .. });
        is_by_token(self) && !is_by_token(other)
    }
}

/// Reason and message of the condition of a machine that has its certificate.
fn granted(evidence: bool) -> (&'static str, &'static str) {
    if evidence {
        let message = "the machine proved its identity, and its certificate was granted";
        ("Attested", message)
    } else {
        let message = "the certificate was granted without evidence, with the attestor insecure";
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

/// The outcomes of one cluster that are not written yet: the last one of each machine, by its UID.
///
/// Only Machines of the inventory get here. So all clusters together have no more of them than there are Machines, whose
/// objects take more memory.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(Mutex<BTreeMap<String, (ObjectReference, Outcome)>>);

impl Outcomes {
    /// Adds one, in the place of an earlier one of the machine. Those of other objects than Machines are left out, and
    /// refusals where too many wait.
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

    /// Adds one unless a later one waits.
    pub(crate) fn add_former(&self, machine: &ObjectReference, outcome: Outcome) {
        let Some(uid) = uid_of(machine) else { return };
        if !self.0.lock().contains_key(uid) {
            self.add(machine, outcome);
        }
    }

    /// Takes all out, refusals last.
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

/// Writes the condition of a Machine, and of nothing else with its name.
///
/// Another version of the API than v1beta2 has it where Cluster API has such conditions there: in `status.v1beta2`.
pub(crate) async fn write(
    management: &Client,
    resource: &ApiResource,
    machine: &ObjectReference,
    condition: &Condition,
) -> Result<(), CallError> {
    let namespace = machine.namespace.as_deref().unwrap_or_default();
    let name = machine.name.as_deref().unwrap_or_default();
    let api: Api<Custom<NoFields>> = Api::namespaced_with(management.clone(), namespace, resource);
    let since = Timestamp::try_from(condition.since).unwrap_or_default();
    let conditions = json!({ "conditions": [{
        "type": NODE_ATTESTED,
        "status": if condition.holds { "True" } else { "False" },
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
    let patched = api.patch_status(name, &parameters, &patch);
    in_time(DEADLINE, patched).await.map(drop)
}

#[cfg(test)]
mod tests;
