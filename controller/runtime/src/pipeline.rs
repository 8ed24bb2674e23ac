//! The processing of one request, from its turn to its answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::FutureExt as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt as _;
use kubelet_attestation::contract::REQUEST_ABANDONED_AFTER;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::decide::{Context, Decided, Decision, decide};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::TokenOwner;
use node_attestation_core::ledger::LastIssued;
use node_attestation_core::refusal::{Deferral, Failure, Ignored};
use node_attestation_core::request::ApprovalReason;
use node_attestation_core::time;
use tokio::time::Instant;

use crate::client::CallError;
use crate::client::ServerTime;
use crate::clock;
use crate::csr_writer::{
    Answered, DENIED, FAILED, RequestStore, answer, has_condition, is_approved,
};
use crate::events::{Events, reason};
use crate::log_lines::ClusterLines;
use crate::logs::{self, Subject};
use crate::machine_conditions::{Outcome, Outcomes};
use crate::metrics::ClusterMetrics;
use crate::object_key::ObjectKey;
use crate::queue::{self, Work, lean, memory};
use crate::turns::{FairTurns, Line};

/// The deadline for all checks of one request. Verifiers have shorter deadlines. This deadline protects the queue if a
/// verifier has no deadline.
const DECISION_DEADLINE: Duration = Duration::from_mins(2);

/// The age at which a request without a machine fails. The plugin never waits for a request of this age, so the failure
/// does not stop a run of the plugin.
const MAX_WITHOUT_MACHINE: Duration = Duration::from_mins(20);

/// The maximum number of decisions on a request that keeps changing, before other requests get their turn.
const MAX_ROUNDS: usize = 4;

/// Decides on the requests of one cluster, and answers them.
#[derive(Debug, Clone)]
pub struct Pipeline {
    context: Context,
    store: Arc<dyn RequestStore>,
    events: Events,
    clock: fn() -> SystemTime,
    /// The time source for computing the ages of requests.
    server_time: ServerTime,
    metrics: ClusterMetrics,
    /// The outcomes for the conditions of Machines. `None` if there are no Machines.
    outcomes: Option<Arc<Outcomes>>,
    /// The cluster's queue for the turns that all clusters share.
    turns: Line,
    /// The cluster's log lines.
    lines: ClusterLines,
}

/// The next state of a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// No further processing.
    Done,
    /// The request is retried later.
    Retry,
    /// The request is retried later. It belongs to another controller until attestation is enforced.
    NotOursYet,
    /// The request is retried after it has changed, because the API server rejected the answer.
    GiveUp,
}

impl Pipeline {
    /// Creates a pipeline that decides with `context` and `clock`, and writes to `store`.
    pub fn new(
        context: Context,
        store: Arc<dyn RequestStore>,
        events: Events,
        clock: fn() -> SystemTime,
    ) -> Self {
        let alone = ObjectKey::new("", "");
        Self {
            context,
            store,
            events,
            clock,
            server_time: ServerTime::default(),
            metrics: ClusterMetrics::default(),
            outcomes: None,
            turns: FairTurns::new(queue::TURNS).line(&alone),
            lines: ClusterLines::of(&alone),
        }
    }

    /// Sets the time source for computing the ages of requests. The default is this machine's clock.
    #[must_use]
    pub(crate) fn with_server_time(self, server_time: ServerTime) -> Self {
        Self {
            server_time,
            ..self
        }
    }

    /// Sets the cluster's queue for the turns that all clusters share, and its log lines.
    #[must_use]
    pub(crate) fn in_turn(self, turns: Line, lines: ClusterLines) -> Self {
        Self {
            turns,
            lines,
            ..self
        }
    }

    /// The cluster's log lines.
    pub(crate) fn lines(&self) -> &ClusterLines {
        &self.lines
    }

    /// The cluster's queue for turns.
    pub(crate) fn turns(&self) -> Line {
        self.turns.clone()
    }

    /// Reports to these metrics.
    #[must_use]
    pub(crate) fn measured_by(self, metrics: ClusterMetrics) -> Self {
        metrics.process().serves(&self.context.verifiers);
        Self { metrics, ..self }
    }

    /// Adds the outcomes of requests to this collection.
    #[must_use]
    pub(crate) fn with_outcomes(self, outcomes: Arc<Outcomes>) -> Self {
        Self {
            outcomes: Some(outcomes),
            ..self
        }
    }

    /// The metrics of the cluster.
    pub(crate) fn metrics(&self) -> &ClusterMetrics {
        &self.metrics
    }

    /// The signers whose requests this pipeline answers.
    pub fn signers(&self) -> Vec<String> {
        self.context.signers()
    }

    /// The signers, except the signers of unavailable attestation providers.
    pub(crate) fn available_signers(&self) -> Vec<String> {
        self.context.available_signers()
    }

    /// Decides on the request and answers it.
    ///
    /// A different object with the same name is ignored, because it has a separate turn.
    pub(crate) async fn process(&self, mut work: Work) -> Next {
        for _ in 0..MAX_ROUNDS {
            let error = match self.round(&mut work).boxed().await {
                Ok(next) => return next,
                Err(error) => error,
            };
            let csr = work.name.as_str();
            if error.is_not_found() {
                return deleted(csr);
            }
            if !error.is_conflict() {
                logs::unanswered(&self.lines.of_refusals(), csr, &error, work.attempts > 0);
                return Next::Retry;
            }
            // Another client changed the request concurrently, so the request is read again and decided again.
            tracing::debug!(csr, "the request has changed since it was read");
        }
        Next::Retry
    }

    async fn round(&self, work: &mut Work) -> Result<Next, CallError> {
        let request = if let Some(watched) = work.object.take() {
            *watched
        } else {
            let csr = work.name.as_str();
            let found = self.store.get(csr).await?.map(lean);
            match found.filter(|found| found.metadata.uid.as_ref() == Some(&work.uid)) {
                None => return Ok(deleted(csr)),
                // The queue reserves more memory for the next try, or delays the try until enough memory is available.
                Some(found) if memory(&found) > work.max_len => {
                    tracing::debug!(csr, "the request is larger than the watch reported");
                    return Ok(Next::Retry);
                }
                Some(found) => found,
            }
        };
        let (begun, repeated) = (Instant::now(), work.attempts > 0);
        let Some(mut decided) = self.decided(&request).await else {
            return Ok(Next::Retry);
        };
        let subject = Subject::of(&request);
        logs::checks(&subject, &decided);
        let answered = self.answer(&request, &mut decided).await?;
        if let Answered::Rejected { error, .. } = answered {
            logs::rejected(&self.lines.of_refusals(), &subject, &error);
            return Ok(Next::GiveUp);
        }

        self.note(&decided.decision);
        if !is_waiting(&decided.decision)
            && let Some(machine) = &decided.machine
        {
            self.add_outcome(machine, &request, &decided.decision);
        }
        let whole = begun.elapsed();
        logs::decision(&subject, &decided, (whole, repeated), &self.lines);
        if !repeated || !is_waiting(&decided.decision) {
            // A tenant controls the names of unavailable attestation providers, so they are not used as label values.
            let provider = subject.provider_of(&self.available_signers());
            let decision = (logs::outcome(&decided.decision), reason(&decided.decision));
            self.metrics.decided(decision, provider, whole);
        }
        if let Decision::Retry(deferral) = &decided.decision
            && is_reported_again(work.attempts)
        {
            self.tell_of_wait(&request, &decided, deferral).await;
        }
        let (next, is_reported) = match &decided.decision {
            // This controller becomes responsible for the request when attestation is enforced.
            Decision::Ignore(Ignored::NotEnforced) if is_open(&request) => (Next::NotOursYet, true),
            Decision::Ignore(_) => (Next::Done, true),
            Decision::Retry(_) => (Next::Retry, repeated),
            Decision::Deny(_) | Decision::Fail(_) | Decision::Issue(_) | Decision::Approve(_) => {
                (Next::Done, false)
            }
        };
        if !is_reported {
            let now = (self.clock)();
            self.events.publish(&request, &decided, now);
        }
        Ok(next)
    }

    /// Writes an Event on the Machine if its request is still waiting for Cluster API or for a verifier, because an
    /// operator might need to act. If a request's provider ID is unknown, its token identifies the Machine.
    async fn tell_of_wait(
        &self,
        request: &CertificateSigningRequest,
        decided: &Decided,
        deferral: &Deferral,
    ) {
        let may_wait_for_a_person = matches!(
            deferral,
            Deferral::MachineNotFound
                | Deferral::MachineNotReady { .. }
                | Deferral::NodeNameShared { .. }
                | Deferral::VerifierUnavailable { .. }
                | Deferral::SignerUnavailable(_)
                | Deferral::SignerRefused(_)
                | Deferral::SignatureInvalid
        );
        if !may_wait_for_a_person {
            return;
        }
        let machine = match &decided.machine {
            Some(machine) => Some(machine.clone()),
            None => self.machine_of_token(request).await,
        };
        if let Some(machine) = machine {
            self.add_outcome(&machine, request, &decided.decision);
            let now = (self.clock)();
            let waited = (age(request, self.server_time.now_or(now)), now);
            self.events.waits(machine, request, deferral, waited);
        }
    }

    fn add_outcome(
        &self,
        machine: &ObjectReference,
        request: &CertificateSigningRequest,
        decision: &Decision,
    ) {
        if let Some(outcomes) = &self.outcomes
            && let Some(outcome) = Outcome::of(request, decision)
        {
            outcomes.add(machine, outcome);
        }
    }

    async fn machine_of_token(
        &self,
        request: &CertificateSigningRequest,
    ) -> Option<ObjectReference> {
        let token = TokenId::of_username(request.spec.username.as_deref()?)?;
        let owner = self.context.inventory.by_token(&token);
        let owner = tokio::time::timeout(DECISION_DEADLINE, owner).await;
        match owner.ok()?.ok()?? {
            TokenOwner::Machine(machine) => machine.object,
            TokenOwner::Pool { object, .. } => object.map(|object| *object),
        }
    }

    /// Records an issued client certificate in the ledger.
    fn note(&self, decision: &Decision) {
        let Decision::Issue(certificate) = decision else {
            return;
        };
        if certificate.approval_reason == ApprovalReason::NodeNameClaimed {
            let issued = LastIssued {
                generation: certificate.uid.generation,
                serial: certificate.serial.clone(),
                not_after: certificate.not_after,
                time: (self.clock)(),
                elapsed: clock::elapsed(),
                boot: certificate.boot,
            };
            self.context.ledger.issued(&certificate.node_name, issued);
        }
    }

    /// Writes the decision. If the API server rejects the certificate, writes `Failed` instead.
    async fn answer(
        &self,
        request: &CertificateSigningRequest,
        decided: &mut Decided,
    ) -> Result<Answered, CallError> {
        let answered = answer(&*self.store, request.clone(), &decided.decision).await?;
        match (answered, &decided.decision) {
            // A request for this controller's signers must never remain approved but not issued.
            (Answered::Rejected { request, error }, Decision::Issue(_)) => {
                logs::rejected(&self.lines.of_refusals(), &Subject::of(&request), &error);
                decided.decision = Decision::Fail(Failure::CertificateRejected);
                answer(&*self.store, *request, &decided.decision).await
            }
            (answered, _) => Ok(answered),
        }
    }

    async fn decided(&self, request: &CertificateSigningRequest) -> Option<Decided> {
        let now = (self.clock)();
        let deciding = decide(request, &self.context, now, clock::elapsed);
        let decided = tokio::time::timeout(DECISION_DEADLINE, deciding).await.ok();
        if decided.is_none() {
            logs::unchecked(&self.lines.of_refusals(), request, DECISION_DEADLINE);
        }
        concluded(request, decided, self.server_time.now_or(now))
    }
}

/// Returns the decision, or a failure if the request has waited too long. `decided` is `None` if the checks did not
/// finish in time.
pub(crate) fn concluded(
    request: &CertificateSigningRequest,
    decided: Option<Decided>,
    now: SystemTime,
) -> Option<Decided> {
    let (obstacle, waits_for_a_machine) = match &decided {
        // The built-in signer might still be responsible for the request.
        Some(Decided {
            decision: Decision::Retry(Deferral::EnforcementUnknown),
            ..
        }) => return decided,
        Some(Decided {
            decision: Decision::Retry(deferral),
            ..
        }) => {
            let for_a_machine = matches!(deferral, Deferral::MachineNotFound);
            (error_chain(deferral), for_a_machine)
        }
        Some(_) => return decided,
        None => ("the checks did not complete in time".to_owned(), false),
    };
    let age = age(request, now);
    let failure = if is_approved(request) && age > REQUEST_ABANDONED_AFTER {
        Failure::UndecidedTooLong(obstacle)
    } else if waits_for_a_machine && age > MAX_WITHOUT_MACHINE {
        Failure::MachineMissing
    } else {
        return decided;
    };
    let reached = decided.map(|decided| (decided.machine, decided.steps));
    let (machine, steps) = reached.unwrap_or_default();
    Some(Decided {
        decision: Decision::Fail(failure),
        machine,
        steps,
    })
}

fn deleted(csr: &str) -> Next {
    tracing::debug!(csr, "the request was deleted");
    Next::Done
}

/// Whether this retry of a waiting request creates an Event. The delays between retries double, up to one minute. The
/// fifth retry, 31 seconds after the first try, creates the first Event. Further Events follow after 2, 6, 14 and 30
/// minutes.
fn is_reported_again(attempts: u32) -> bool {
    let since = attempts.saturating_sub(3);
    since > 1 && since.is_power_of_two()
}

/// Whether the same decision can occur again for the request.
fn is_waiting(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Retry(_) | Decision::Ignore(Ignored::NotEnforced)
    )
}

/// Whether the request is still pending.
fn is_open(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    status.is_none_or(|status| status.certificate.is_none())
        && !has_condition(request, DENIED)
        && !has_condition(request, FAILED)
}

/// The age of the request. 0 if its creation time is missing or in the future.
pub(crate) fn age(request: &CertificateSigningRequest, now: SystemTime) -> Duration {
    let created = request.creation_timestamp();
    let age = created.and_then(|created| time::age(created.0.into(), now));
    age.unwrap_or_default()
}

#[cfg(test)]
mod tests;
