//! One request, from the moment its turn comes to its answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use tokio::time::Instant;

use crate::decide::{Context, Decided, Decision, decide};
use crate::events::Events;
use crate::logs::{self, Subject};
use crate::status::{RequestStore, StoreError, answer};

/// For all checks of one request. A verifier has deadlines of its own, well below; this one keeps a place in the queue
/// from being lost to one that has not.
const DECISION_DEADLINE: Duration = Duration::from_mins(2);

/// How often a request that changes under our hands is decided on anew before others have their turn.
const MAX_ROUNDS: usize = 4;

/// What decides about one cluster's requests, and answers them.
#[derive(Debug, Clone)]
pub struct Pipeline {
    context: Context,
    store: Arc<dyn RequestStore>,
    events: Events,
    clock: fn() -> SystemTime,
}

/// What is to become of a request's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing more.
    Done,
    /// Another try, later.
    Retry,
}

/// Why a request that is ours was left without an answer.
enum Unanswered {
    Conflict,
    Gone,
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
        self.context
            .verifiers
            .providers()
            .map(kubelet_attestation::names::Provider::client_signer)
            .collect()
    }

    /// Decides about the request of this name and answers it.
    ///
    /// `watched` is the request as it was last seen; without it, it is read. `attempts` are those that came before.
    pub(crate) async fn process(
        &self,
        name: &str,
        watched: Option<Box<CertificateSigningRequest>>,
        attempts: u32,
    ) -> Next {
        let mut known = watched;
        for _ in 0..MAX_ROUNDS {
            let round = match known.take() {
                Some(request) => self.round(*request, attempts).await,
                None => self.read_and_round(name, attempts).await,
            };
            match round {
                Ok(next) => return next,
                Err(Unanswered::Conflict) => tracing::debug!(csr = name, "changed meanwhile"),
                Err(Unanswered::Gone) => {
                    tracing::debug!(csr = name, "deleted meanwhile");
                    return Next::Done;
                }
                Err(Unanswered::Store(error)) => {
                    logs::unanswered(name, &error, attempts > 0);
                    return Next::Retry;
                }
            }
        }
        Next::Retry
    }

    async fn read_and_round(&self, name: &str, attempts: u32) -> Result<Next, Unanswered> {
        let request = self.store.get(name).await?.ok_or(Unanswered::Gone)?;
        self.round(request, attempts).await
    }

    async fn round(
        &self,
        request: CertificateSigningRequest,
        attempts: u32,
    ) -> Result<Next, Unanswered> {
        let begun = Instant::now();
        let Some(decided) = self.decided(&request).await else {
            return Ok(Next::Retry);
        };
        let subject = Subject::of(&request);
        logs::checks(&subject, &decided);
        answer(&*self.store, request.clone(), &decided.decision).await?;

        let repeated = attempts > 0;
        logs::decision(&subject, &decided, begun.elapsed(), repeated);
        let (next, told) = match &decided.decision {
            Decision::Ignore(_) => (Next::Done, true),
            Decision::Retry(_) => (Next::Retry, repeated),
            Decision::Deny(_) | Decision::Fail(_) | Decision::Issue(_) => (Next::Done, false),
        };
        if !told {
            let now = (self.clock)();
            self.events.publish(&request, &decided.decision, now).await;
        }
        Ok(next)
    }

    async fn decided(&self, request: &CertificateSigningRequest) -> Option<Decided> {
        let deciding = decide(request, &self.context, (self.clock)());
        let decided = tokio::time::timeout(DECISION_DEADLINE, deciding).await;
        if decided.is_err() {
            let csr = request.metadata.name.as_deref();
            tracing::error!(csr, "the checks were not done in {DECISION_DEADLINE:?}");
        }
        decided.ok()
    }
}

#[cfg(test)]
mod tests;
