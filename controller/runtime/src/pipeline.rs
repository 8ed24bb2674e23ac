//! One request, from the moment its turn comes to its answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt as _;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::decide::{Context, Decided, Decision, decide};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::TokenOwner;
use node_attestation_core::ledger::LastIssued;
use node_attestation_core::refusal::{Deferral, Failure, Ignored};
use node_attestation_core::request::ApprovalReason;
use tokio::time::Instant;

use crate::clock;
use crate::csr_writer::{
    Answered, DENIED, FAILED, RequestStore, StoreError, answer, has_condition, is_approved,
};
use crate::events::Events;
use crate::logs::{self, Subject};
use crate::queue::{Work, json_len};

/// For all checks of one request. A verifier has deadlines of its own, well below; this one keeps a
/// place in the queue from being lost to one that has not.
const DECISION_DEADLINE: Duration = Duration::from_mins(2);

/// An approved request is not left undecided for longer: a node gives its request up at this age
/// and files another, so nobody waits for this one any more.
const MAX_UNDECIDED: Duration = Duration::from_mins(10);

/// A request whose machine is not there is not left for longer: no run of a plugin that began before
/// its node gave it up waits for it any more, and so none takes the failure for one of its own.
const MAX_WITHOUT_MACHINE: Duration = Duration::from_mins(20);

/// How often a request that changes under our hands is decided on anew before others have their
/// turn.
const MAX_ROUNDS: usize = 4;

/// What decides about one cluster's requests, and answers them.
#[derive(Debug, Clone)]
pub struct Pipeline {
    context: Context,
    store: Arc<dyn RequestStore>,
    events: Events,
    clock: fn() -> SystemTime,
}

/// The next state of a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing more.
    Done,
    /// Another try, later.
    Retry,
    /// Another try once the request has changed: no answer can be written to it as it is.
    GiveUp,
}

impl Pipeline {
    /// Decides with `context` at the time that `clock` tells, and writes to `store`.
    pub fn new(
        context: Context,
        store: Arc<dyn RequestStore>,
        events: Events,
        clock: fn() -> SystemTime,
    ) -> Self {
        Self {
            context,
            store,
            events,
            clock,
        }
    }

    /// The signers whose requests this answers.
    pub fn signers(&self) -> Vec<String> {
        self.context.signers()
    }

    /// Decides about the request and answers it.
    ///
    /// Another object under the same name is left alone: it has a turn of its own.
    pub(crate) async fn process(&self, mut work: Work) -> Next {
        for _ in 0..MAX_ROUNDS {
            let error = match self.round(&mut work).await {
                Ok(next) => return next,
                Err(error) => error,
            };
            let csr = work.name.as_str();
            match error {
                // Somebody wrote at the same time, so the request is read and decided on anew.
                StoreError::Conflict => tracing::debug!(csr, "changed meanwhile"),
                StoreError::Gone => {
                    tracing::debug!(csr, "deleted meanwhile");
                    return Next::Done;
                }
                StoreError::Refused(_) | StoreError::Unavailable { .. } | StoreError::Deadline => {
                    logs::unanswered(csr, &error, work.attempts > 0);
                    return Next::Retry;
                }
            }
        }
        Next::Retry
    }

    /// The request as it was watched, or else as it is; `None` where it has grown beyond the memory that was set
    /// aside for it.
    async fn request(
        &self,
        work: &mut Work,
    ) -> Result<Option<CertificateSigningRequest>, StoreError> {
        if let Some(request) = work.object.take() {
            return Ok(Some(*request));
        }
        let found = self.store.get(&work.name).await?;
        let is_same =
            |found: &CertificateSigningRequest| found.metadata.uid.as_ref() == Some(&work.uid);
        let request = found.filter(is_same).ok_or(StoreError::Gone)?;
        Ok((json_len(&request) <= work.max_len).then_some(request))
    }

    async fn round(&self, work: &mut Work) -> Result<Next, StoreError> {
        // It goes back to the queue, which sets more memory aside, or has it wait until there is some.
        let Some(request) = self.request(work).await? else {
            let csr = work.name.as_str();
            tracing::debug!(csr, "longer than it was when it was watched");
            return Ok(Next::Retry);
        };
        let (begun, repeated) = (Instant::now(), work.attempts > 0);
        let Some(mut decided) = self.decided(&request).await else {
            return Ok(Next::Retry);
        };
        let subject = Subject::of(&request);
        logs::checks(&subject, &decided);
        let answered = self.answer(&request, &mut decided).await?;
        if let Answered::Rejected { error, .. } = answered {
            logs::rejected(&subject, &error);
            return Ok(Next::GiveUp);
        }

        self.note(&decided.decision);
        logs::decision(&subject, &decided, begun.elapsed(), repeated);
        if let Decision::Retry(deferral) = &decided.decision
            && is_told_again(work.attempts)
        {
            self.tell_of_wait(&request, &decided, deferral).await;
        }
        let (next, told) = match &decided.decision {
            // It is ours as soon as attestation is enforced.
            Decision::Ignore(Ignored::NotEnforced) if is_open(&request) => (Next::Retry, true),
            Decision::Ignore(_) => (Next::Done, true),
            Decision::Retry(_) => (Next::Retry, repeated),
            Decision::Deny(_) | Decision::Fail(_) | Decision::Issue(_) | Decision::Approve(_) => {
                (Next::Done, false)
            }
        };
        if !told {
            let now = (self.clock)();
            self.events.publish(&request, &decided, now);
        }
        Ok(next)
    }

    /// Tells the Machine of a request that goes on waiting for what a person may have to do: for Cluster
    /// API, or for what appraises its evidence. Also where the request is known by its token alone, since
    /// its provider ID is nobody's yet.
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
        );
        if !may_wait_for_a_person {
            return;
        }
        let machine = match &decided.machine {
            Some(machine) => Some(machine.clone()),
            None => self.machine_of_token(request).await,
        };
        if let Some(machine) = machine {
            let now = (self.clock)();
            let waited = (age(request, now), now);
            self.events.waits(machine, request, deferral, waited);
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

    /// Tells the ledger of a client certificate that is published.
    fn note(&self, decision: &Decision) {
        let Decision::Issue(certificate) = decision else {
            return;
        };
        let certificate = certificate.issued();
        if certificate.basis == ApprovalReason::NodeNameClaimed {
            let issued = LastIssued {
                generation: certificate.uid.generation,
                serial: certificate.serial.clone(),
                not_after: certificate.not_after,
                time: (self.clock)(),
                boot: certificate.boot,
            };
            self.context.ledger.issued(&certificate.node_name, issued);
        }
    }

    /// Writes the decision; where a certificate is not taken, `Failed`, which is then the decision.
    async fn answer(
        &self,
        request: &CertificateSigningRequest,
        decided: &mut Decided,
    ) -> Result<Answered, StoreError> {
        let answered = answer(&*self.store, request.clone(), &decided.decision).await?;
        match (answered, &decided.decision) {
            // Nothing of ours stays approved and unissued.
            (Answered::Rejected { request, error }, Decision::Issue(_)) => {
                logs::rejected(&Subject::of(&request), &error);
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
        let (obstacle, waits_for_a_machine) = match &decided {
            Some(Decided {
                decision: Decision::Retry(deferral),
                ..
            }) => {
                let for_a_machine = matches!(deferral, Deferral::MachineNotFound);
                (error_chain(deferral), for_a_machine)
            }
            Some(_) => return decided,
            None => {
                let csr = request.metadata.name.as_deref();
                tracing::error!(csr, "the checks were not done in {DECISION_DEADLINE:?}");
                ("the checks were not done in time".to_owned(), false)
            }
        };
        let age = age(request, now);
        let failure = if is_approved(request) && age > MAX_UNDECIDED {
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
}

/// Whether a request that waits is told of once more at this try. Tries are twice as far apart each, up
/// to a minute: the fifth is half a minute after the first, then come 2, 6, 14 and 30 minutes.
fn is_told_again(attempts: u32) -> bool {
    let since = attempts.saturating_sub(3);
    since > 1 && since.is_power_of_two()
}

/// Whether the request is still pending.
fn is_open(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    status.is_none_or(|status| status.certificate.is_none())
        && !has_condition(request, DENIED)
        && !has_condition(request, FAILED)
}

/// One without a time, or of the future, is new.
fn age(request: &CertificateSigningRequest, now: SystemTime) -> Duration {
    let created = request.creation_timestamp();
    let age = created.and_then(|created| now.duration_since(created.0.into()).ok());
    age.unwrap_or_default()
}

#[cfg(test)]
mod tests;
