//! One request, from the moment its turn comes to its answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::decide::{Context, Decided, Decision, decide};
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::TokenOwner;
use node_attestation_core::ledger::LastIssued;
use node_attestation_core::refusal::{Deferral, Failure, Ignored};
use node_attestation_core::request::ApprovalReason;
use tokio::time::Instant;

use crate::clock;
use crate::csr_writer::{Answered, RequestStore, StoreError, answer, is_approved};
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

/// Why a request that is ours was left without an answer.
enum Unanswered {
    Conflict,
    Gone,
    /// The watch will tell of it, or has.
    Grown,
    Store(StoreError),
}

impl From<StoreError> for Unanswered {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict => Self::Conflict,
            StoreError::Gone => Self::Gone,
            StoreError::Refused { .. } | StoreError::Unavailable { .. } | StoreError::Deadline => {
                Self::Store(error)
            }
        }
    }
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
    pub(crate) async fn process(&self, work: Work) -> Next {
        let Work {
            name,
            uid,
            object: mut known,
            max_len,
            attempts,
        } = work;
        let name = name.as_str();
        for _ in 0..MAX_ROUNDS {
            let round = match known.take() {
                Some(request) => self.round(*request, attempts).await,
                None => self.read_and_round(name, &uid, max_len, attempts).await,
            };
            match round {
                Ok(next) => return next,
                Err(Unanswered::Conflict) => tracing::debug!(csr = name, "changed meanwhile"),
                Err(Unanswered::Gone) => {
                    tracing::debug!(csr = name, "deleted meanwhile");
                    return Next::Done;
                }
                Err(Unanswered::Grown) => {
                    tracing::debug!(csr = name, "longer than it was when it was watched");
                    return Next::Retry;
                }
                Err(Unanswered::Store(error)) => {
                    logs::unanswered(name, &error, attempts > 0);
                    return Next::Retry;
                }
            }
        }
        Next::Retry
    }

    async fn read_and_round(
        &self,
        name: &str,
        uid: &str,
        max_len: usize,
        attempts: u32,
    ) -> Result<Next, Unanswered> {
        let request = self
            .store
            .get(name)
            .await?
            .filter(|request| request.metadata.uid.as_deref() == Some(uid))
            .ok_or(Unanswered::Gone)?;
        if json_len(&request) > max_len {
            return Err(Unanswered::Grown);
        }
        self.round(request, attempts).await
    }

    async fn round(
        &self,
        request: CertificateSigningRequest,
        attempts: u32,
    ) -> Result<Next, Unanswered> {
        let begun = Instant::now();
        let Some(mut decided) = self.decided(&request).await else {
            return Ok(Next::Retry);
        };
        let subject = Subject::of(&request);
        logs::checks(&subject, &decided);
        let repeated = attempts > 0;
        if let Err(error) = self.answer(&request, &mut decided).await? {
            logs::rejected(&subject, &error);
            return Ok(Next::GiveUp);
        }

        self.note(&decided.decision);
        logs::decision(&subject, &decided, begun.elapsed(), repeated);
        if let Decision::Retry(deferral) = &decided.decision
            && is_told_again(attempts)
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
        if certificate.issued().basis == ApprovalReason::NodeNameClaimed {
            let issued = LastIssued {
                generation: certificate.issued().uid.generation,
                serial: certificate.issued().serial.clone(),
                not_after: certificate.issued().not_after,
                time: (self.clock)(),
                boot: certificate.issued().boot,
            };
            self.context
                .ledger
                .issued(&certificate.issued().node_name, issued);
        }
    }

    /// Writes the decision; where a certificate is not taken, `Failed`, which is then the decision.
    ///
    /// The inner error: the API server takes neither.
    async fn answer(
        &self,
        request: &CertificateSigningRequest,
        decided: &mut Decided,
    ) -> Result<Result<(), StoreError>, StoreError> {
        let answered = answer(&*self.store, request.clone(), &decided.decision).await?;
        let (approved, error) = match answered {
            Answered::Written => return Ok(Ok(())),
            Answered::Rejected { request, error } => (request, error),
        };
        if !matches!(decided.decision, Decision::Issue(_)) {
            return Ok(Err(error));
        }
        logs::rejected(&Subject::of(request), &error);
        decided.decision = Decision::Fail(Failure::CertificateRejected);
        match answer(&*self.store, *approved, &decided.decision).await? {
            Answered::Written => Ok(Ok(())),
            Answered::Rejected { error, .. } => Ok(Err(error)),
        }
    }

    async fn decided(&self, request: &CertificateSigningRequest) -> Option<Decided> {
        let now = (self.clock)();
        let deciding = decide(request, &self.context, now, clock::elapsed);
        let decided = tokio::time::timeout(DECISION_DEADLINE, deciding).await.ok();
        let obstacle = match decided.as_ref().map(|decided| &decided.decision) {
            Some(Decision::Retry(deferral)) => error_chain(deferral),
            Some(
                Decision::Ignore(_)
                | Decision::Deny(_)
                | Decision::Fail(_)
                | Decision::Issue(_)
                | Decision::Approve(_),
            ) => return decided,
            None => {
                let csr = request.metadata.name.as_deref();
                tracing::error!(csr, "the checks were not done in {DECISION_DEADLINE:?}");
                "the checks were not done in time".to_owned()
            }
        };
        let waits_for_a_machine = decided.as_ref().is_some_and(|decided| {
            matches!(decided.decision, Decision::Retry(Deferral::MachineNotFound))
        });
        let age = age(request, now);
        let failure = if is_approved(request) && age > MAX_UNDECIDED {
            Failure::UndecidedTooLong(obstacle)
        } else if waits_for_a_machine && age > MAX_WITHOUT_MACHINE {
            Failure::MachineMissing
        } else {
            return decided;
        };
        Some(Decided {
            decision: Decision::Fail(failure),
            machine: decided.as_ref().and_then(|decided| decided.machine.clone()),
            steps: decided.map(|decided| decided.steps).unwrap_or_default(),
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
    request.status.as_ref().is_none_or(|status| {
        let conditions = status.conditions.iter().flatten();
        let mut ends = conditions.filter(|one| one.type_ == "Denied" || one.type_ == "Failed");
        status.certificate.is_none() && ends.next().is_none()
    })
}

/// One without a time, or of the future, is new.
fn age(request: &CertificateSigningRequest, now: SystemTime) -> Duration {
    request
        .metadata
        .creation_timestamp
        .as_ref()
        .and_then(|created| now.duration_since(SystemTime::from(created.0)).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod challenges;
#[cfg(test)]
mod crashes;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod waits;
