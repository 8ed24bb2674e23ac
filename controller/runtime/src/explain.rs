//! The command `explain`: runs a request through the controller's checks, and shows the input of each check.
//!
//! # Guarantees
//!
//! - The command runs the same checks as the controller, with [`explain`](decide::explain).
//! - The command does not write anything: no record, no answer, no Node.
//! - The command calls only API servers. If a check needs another service, the command skips the check, and the
//!   explanation reports this.

use std::error::Error;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::Api;
use kubelet_attestation::csr::{envelope, parse, subject};
use kubelet_attestation::errors::{error_chain, shortened};
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, Provider};
use node_attestation_core::decide::{self, Context, Decided, Decision};
use node_attestation_core::refusal::{Deferral, NotCalled};
use node_attestation_core::time;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::capi::ObjectKey;
use crate::client::{CallError, ClusterAccess, call};
use crate::clock;
use crate::csr_writer::{DENIED, FAILED, has_condition, is_approved};
use crate::events::reason;
use crate::logs::outcome;
use crate::pipeline::{age, concluded};
use crate::watch::readable_one_of;

mod answers;
pub(crate) mod expiries;
mod nodes;
mod of_cluster;
mod offline;
mod snapshot;
mod standalone;

pub use answers::{Condition, RelatedEvent};
pub use nodes::NodePrediction;
pub(crate) use of_cluster::by_secret;
pub use standalone::StandaloneSettings;

use offline::Offline;

type BoxError = Box<dyn Error + Send + Sync>;

/// The reason for an undecided request if a service was not called.
const NOT_CALLED: &str = "NotCalled";

/// The deadline for all checks.
const DEADLINE: Duration = Duration::from_secs(30);

/// The maximum length of a string. An explanation is printed on a terminal, and a tenant can operate the workload API
/// server.
const MAX_TEXT_LEN: usize = 4096;

/// Truncates text that comes from the workload API server.
fn bounded(text: &str) -> String {
    shortened(text, MAX_TEXT_LEN).to_owned()
}

/// A cluster whose requests can be explained.
#[derive(Debug)]
pub struct Explainer {
    context: Context,
    /// The workload cluster. `None` without a kubeconfig.
    workload: Option<ClusterAccess>,
    /// The management cluster, and the key of the Cluster in it.
    management: Option<(ClusterAccess, ObjectKey)>,
    signed_by: String,
    /// The reason why the Cluster is not Ready.
    not_ready: Option<String>,
    offline: Offline,
    notes: Vec<String>,
    _watches: JoinSet<()>,
}

/// A request cannot be explained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// A request with this name does not exist. Kubernetes removes old requests.
    #[error(
        "CertificateSigningRequest {0} does not exist; Kubernetes removes CSRs after several hours"
    )]
    NotFound(String),
    /// A request could not be read.
    #[error("cannot read CertificateSigningRequest {name}")]
    Read {
        /// The name of the request.
        name: String,
        /// The reason.
        source: CallError,
    },
    /// Cluster data that the checks need is missing.
    #[error("cannot explain the requests of Cluster {cluster}")]
    Cluster {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: BoxError,
    },
    /// A file cannot be used.
    #[error(transparent)]
    File(BoxError),
}

/// The result of the checks for one request.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Explanation {
    /// The name of the request.
    pub name: String,
    /// The Cluster. `None` without a management cluster.
    pub cluster: Option<String>,
    /// The reason why the Cluster is not Ready. If the controller does not serve the Cluster, it does not answer the
    /// request until an operator corrects the cause.
    pub not_ready: Option<String>,
    /// The requested signer.
    pub signer_name: String,
    /// The user that created the request.
    pub requester: String,
    /// The node name that the request claims, if it is valid.
    pub node: Option<String>,
    /// The creation time.
    pub created: Option<String>,
    /// The seconds since the creation. `None` if the request has been answered, or if its creation time is unknown.
    pub pending_seconds: Option<u64>,
    /// The signer of the certificate.
    pub signed_by: String,
    /// The time that the checks use: the time of the answer or, if the request is pending, the current time.
    pub as_of: String,
    /// The checks in the order in which they ran. The last check determined the decision.
    pub checks: Vec<Check>,
    /// The decision: `issued`, `approved`, `denied`, `failed`, `deferred`, `ignored` or `undecided`.
    pub outcome: &'static str,
    /// The reason for the decision.
    pub reason: &'static str,
    /// The reason for the approval, or the cause of the refusal.
    pub message: String,
    /// The fix, for operators. `None` if no check refuses the request, or if the decision is unknown.
    pub cure: Option<&'static str>,
    /// The conditions of the request, which the controller or other clients set.
    pub conditions: Vec<Condition>,
    /// Whether the request has a certificate.
    pub issued: bool,
    /// The Events about the request.
    pub events: Vec<RelatedEvent>,
    /// The limits of this explanation.
    pub notes: Vec<String>,
}

/// A check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// The name of the check, as in the log.
    pub name: &'static str,
    /// `passed`, `skipped`, or the outcome of the decision.
    pub outcome: &'static str,
    /// The input of the check, or the error.
    pub saw: String,
}

impl Explainer {
    /// Reads the request with this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the request does not exist or cannot be read.
    pub async fn request(&self, name: &str) -> Result<CertificateSigningRequest, ExplainError> {
        let Some(workload) = &self.workload else {
            return Err(ExplainError::NotFound(name.to_owned()));
        };
        let api: Api<CertificateSigningRequest> = Api::all(workload.client().clone());
        let found = call(readable_one_of(&api, name)).await;
        let found = found.map_err(|source| ExplainError::Read {
            name: name.to_owned(),
            source,
        })?;
        found.ok_or_else(|| ExplainError::NotFound(name.to_owned()))
    }

    /// Explains the request. If the request has been answered, explains its state before the answer, at the time of the
    /// answer.
    pub async fn explain(&self, request: &CertificateSigningRequest) -> Explanation {
        let now = clock::now();
        let answered_at = answers::time(request);
        let as_of = answered_at.unwrap_or(now);
        let open = open(request);
        self.offline.begin(request);
        let deciding = decide::explain(&open, &self.context, as_of, clock::elapsed);
        let decided = timeout(DEADLINE, deciding).await.ok();
        let mut notes = self.notes.clone();
        let not_called = self.offline.taken();
        let mut decided = concluded(&open, decided, as_of);
        let checks = match &decided {
            Some(decided) => checks(decided, not_called),
            None => Vec::new(),
        };
        let (outcome, reason, message) = match &decided {
            None => (
                "undecided",
                "TimedOut",
                format!(
                    "the checks did not complete within {} s",
                    DEADLINE.as_secs()
                ),
            ),
            Some(decided) => decision(&decided.decision, not_called),
        };
        if answered_at.is_some() {
            let note = "the request was already answered: the checks use the time of the answer, and the current \
                        Machines and node identities";
            notes.push(note.to_owned());
        }
        let machine = decided.as_mut().and_then(|decided| decided.machine.take());
        let related_events = self.events(request, machine, &mut notes).await;
        let is_pending = !is_answered(request) && request.metadata.creation_timestamp.is_some();
        let spec = &request.spec;
        let status = request.status.as_ref();
        let certificate = status.and_then(|status| status.certificate.as_ref());
        Explanation {
            name: bounded(request.metadata.name.as_deref().unwrap_or_default()),
            cluster: self.management.as_ref().map(|(_, key)| key.to_string()),
            not_ready: self.not_ready.as_deref().map(bounded),
            signer_name: bounded(&spec.signer_name),
            requester: bounded(spec.username.as_deref().unwrap_or_default()),
            node: claimed_node(&spec.request.0),
            created: request
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|at| at.0.to_string()),
            pending_seconds: is_pending.then(|| age(request, now).as_secs()),
            signed_by: self.signed_by(&spec.signer_name),
            as_of: time::text(as_of),
            checks,
            outcome,
            reason,
            message,
            cure: decided.as_ref().and_then(|decided| cure(&decided.decision)),
            conditions: answers::conditions(request),
            issued: certificate.is_some_and(|certificate| !certificate.0.is_empty()),
            events: related_events,
            notes: notes.iter().map(|note| bounded(note)).collect(),
        }
    }

    fn signed_by(&self, signer: &str) -> String {
        if signer == BUILT_IN_CLIENT_SIGNER {
            "kube-controller-manager, after the request is approved".to_owned()
        } else if signer == BUILT_IN_SERVING_SIGNER {
            // No object shows the value of this option.
            "kube-controller-manager, after the request is approved; or the controller, if --signer-endpoint ends with \
             \",kubelet-serving\""
                .to_owned()
        } else if self.context.signers().iter().any(|own| own == signer) {
            self.signed_by.clone()
        } else {
            "another signer".to_owned()
        }
    }
}

/// Parses requests from YAML or JSON text, which contains one object or a list.
///
/// # Errors
///
/// Returns an error if the text is neither a request nor a list of requests.
pub fn requests(text: &str) -> Result<Vec<CertificateSigningRequest>, ExplainError> {
    #[derive(Deserialize)]
    struct Kind {
        kind: Option<String>,
    }
    #[derive(Deserialize)]
    struct Listed {
        items: Vec<CertificateSigningRequest>,
    }
    let invalid = |error: serde_saphyr::Error| ExplainError::File(error.into());
    let options = || serde_saphyr::options! { with_snippet: false };
    let kind: Kind = serde_saphyr::from_str_with_options(text, options()).map_err(invalid)?;
    match kind.kind.as_deref() {
        Some("CertificateSigningRequest") => {
            let one = serde_saphyr::from_str_with_options(text, options());
            Ok(vec![one.map_err(invalid)?])
        }
        Some("List" | "CertificateSigningRequestList") => {
            let list = serde_saphyr::from_str_with_options(text, options());
            let list: Listed = list.map_err(invalid)?;
            Ok(list.items)
        }
        _ => Err(ExplainError::File(
            "it is not a CertificateSigningRequest".into(),
        )),
    }
}

/// Returns the request without its answer.
fn open(request: &CertificateSigningRequest) -> CertificateSigningRequest {
    let mut open = request.clone();
    if answers::time(request).is_some() || is_answered(request) {
        open.status = None;
    }
    open
}

/// Whether the controller or another signer has answered the request.
fn is_answered(request: &CertificateSigningRequest) -> bool {
    let certificate = request
        .status
        .as_ref()
        .and_then(|status| status.certificate.as_ref());
    let is_ours_to_sign = Provider::of_client_signer(&request.spec.signer_name).is_some()
        || Provider::of_serving_signer(&request.spec.signer_name).is_some();
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
        || has_condition(request, DENIED)
        || has_condition(request, FAILED)
        || (is_approved(request) && !is_ours_to_sign)
}

fn checks(decided: &Decided, not_called: Option<NotCalled>) -> Vec<Check> {
    let (outcome, reason, message) = decision(&decided.decision, not_called);
    let message = if reason == NOT_CALLED {
        format!("not called: {message}")
    } else {
        message
    };
    let is_granted = matches!(decided.decision, Decision::Issue(_) | Decision::Approve(_));
    let last = decided.steps.len().saturating_sub(1);
    let mut checks = Vec::new();
    for (place, step) in decided.steps.iter().enumerate() {
        let is_not_called = not_called.filter(|_| step.check == offline::CHECK);
        let (outcome, saw) = match (&step.saw, is_not_called) {
            (Some(_), Some(not_called)) => (
                "skipped",
                format!("{not_called}; the other parts of this check pass"),
            ),
            (Some(saw), None) => ("passed", bounded(saw)),
            (None, _) if place == last && !is_granted => (outcome, message.clone()),
            (None, _) => ("passed", String::new()),
        };
        checks.push(Check {
            name: step.check,
            outcome,
            saw,
        });
    }
    // Between two checks, the settings of the cluster can also refuse the request.
    if !is_granted && decided.steps.last().is_none_or(|step| step.saw.is_some()) {
        checks.push(Check {
            name: "settings",
            outcome,
            saw: message,
        });
    }
    checks
}

/// The outcome, the reason and the message for a decision.
fn decision(
    decision: &Decision,
    not_called: Option<NotCalled>,
) -> (&'static str, &'static str, String) {
    let message = match decision {
        Decision::Ignore(ignored) => error_chain(ignored),
        Decision::Deny(denial) => error_chain(denial),
        Decision::Fail(failure) => error_chain(failure),
        Decision::Retry(deferral) => {
            if let Some(offline) = not_called_by(deferral) {
                return ("undecided", NOT_CALLED, offline.0.to_owned());
            }
            error_chain(deferral)
        }
        Decision::Issue(_) | Decision::Approve(_) => match not_called {
            Some(NotCalled(whom)) => format!("every other check passes; not called: {whom}"),
            None => "every check passes".to_owned(),
        },
    };
    (outcome(decision), reason(decision), message)
}

/// The fix for a refusal.
fn cure(decision: &Decision) -> Option<&'static str> {
    match decision {
        Decision::Ignore(ignored) => Some(ignored.cure()),
        Decision::Deny(denial) => Some(denial.cure()),
        Decision::Fail(failure) => Some(failure.cure()),
        Decision::Retry(deferral) => not_called_by(deferral).is_none().then(|| deferral.cure()),
        Decision::Issue(_) | Decision::Approve(_) => None,
    }
}

/// The service that was not called, if that caused the deferral.
fn not_called_by(deferral: &Deferral) -> Option<NotCalled> {
    let (Deferral::InventoryUnavailable(source)
    | Deferral::VerifierUnavailable(source)
    | Deferral::LedgerUnavailable(source)
    | Deferral::NodesUnavailable(source)) = deferral
    else {
        return None;
    };
    source.cause::<NotCalled>().copied()
}

fn claimed_node(request: &[u8]) -> Option<String> {
    let envelope = envelope::Envelope::parse(request).ok()?;
    let csr = parse::CertificationRequest::from_der(&envelope.csr).ok()?;
    let node = subject::node_name(csr.subject()).ok()?;
    Some(node.to_string())
}
