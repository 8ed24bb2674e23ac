//! What is done for one cluster from time to time, whatever its nodes ask for.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::timeout;

use super::health::{Answers, Health, Paths};
use super::plan::Service;
use super::terms;
use crate::clusters::ClusterAccess;
use crate::crd::AutoApproveBindings;
use crate::hardening::bindings::{self, Scan};
use crate::hardening::closure::{self, Closure};
use crate::hardening::{HardeningError, admission};
use crate::logs::error_chain;
use crate::preflight;

/// For one part of it: some small calls, each with a deadline of its own.
const PART_DEADLINE: Duration = Duration::from_mins(1);

/// What is repeated of an error: an API server may say anything.
const MAX_MESSAGE_LEN: usize = 512;

/// HTTP statuses of who is not known, or may not.
const NOT_LET_IN: [u16; 2] = [401, 403];

/// The care of one cluster.
#[derive(Debug)]
pub(super) struct Upkeep {
    access: ClusterAccess,
    signers: Vec<String>,
    admission: admission::Settings,
    bindings: AutoApproveBindings,
}

impl Upkeep {
    pub(super) fn new(access: ClusterAccess, service: &Service, signers: Vec<String>) -> Self {
        let signs = service.ca.signer().is_some();
        Self {
            access,
            signers,
            admission: terms::admission_settings(&service.verifiers, signs),
            bindings: service.spec.auto_approve_bindings,
        }
    }

    /// Does all of it once, and tells what was found.
    pub(super) async fn round(&mut self) -> Health {
        let mut health = self.examined().await;
        if !matches!(health.answers, Answers::Yes(_)) {
            return health;
        }
        let client = self.access.client();
        let applied = part(admission::apply(client, &self.admission)).await;
        health.note("the admission policy for requests", applied);
        health.paths = match part(self.paths()).await {
            Ok(paths) => paths,
            Err(error) => Paths::Unasked(error),
        };
        health
    }

    async fn examined(&self) -> Health {
        let examining = preflight::examine(self.access.client(), &self.signers);
        match timeout(PART_DEADLINE, examining).await {
            Ok(Ok(findings)) => Health {
                answers: Answers::Yes(findings.version),
                missing: findings.missing.iter().map(ToString::to_string).collect(),
                ..Health::default()
            },
            Ok(Err(error)) => Health {
                answers: refusal(&error),
                ..Health::default()
            },
            Err(_) => Health {
                answers: Answers::No(late()),
                ..Health::default()
            },
        }
    }

    async fn paths(&self) -> Result<Paths, HardeningError> {
        let client = self.access.client();
        let mut scan = bindings::scan(client).await?;
        let waiting = self.remove(&mut scan).await?;
        let closure = closure::examine(client, &scan).await?;
        let message = closure.message();
        Ok(match closure {
            Closure::Closed => Paths::Closed(message),
            Closure::Open { .. } if waiting.is_some() => Paths::Waiting(message),
            Closure::Open { .. } if scan.open.iter().all(|one| one.kubeadm.is_some()) => {
                Paths::Bindings(message)
            }
            Closure::Open { .. } => Paths::Open(message),
        })
    }

    /// Removes kubeadm's bindings where that is wanted and can be done; why not, where they stay.
    async fn remove(&self, scan: &mut Scan) -> Result<Option<String>, HardeningError> {
        match self.bindings {
            AutoApproveBindings::Report => return Ok(None),
            AutoApproveBindings::Remove => {}
        }
        let removed = bindings::remove(self.access.client(), scan).await?;
        for binding in removed {
            tracing::info!(binding = binding.name(), "removed");
        }
        Ok(None)
    }
}

impl Health {
    fn note<T>(&mut self, what: &str, done: Result<T, String>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                self.undone.push(format!("{what}: {error}"));
                None
            }
        }
    }
}

/// One part, in time.
async fn part<T>(work: impl Future<Output = Result<T, HardeningError>>) -> Result<T, String> {
    match timeout(PART_DEADLINE, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(cut(error_chain(&error))),
        Err(_) => Err(late()),
    }
}

fn late() -> String {
    format!("not done in {} s", PART_DEADLINE.as_secs())
}

fn cut(text: impl Display) -> String {
    text.to_string().chars().take(MAX_MESSAGE_LEN).collect()
}

fn refusal(error: &kube::Error) -> Answers {
    let text = cut(error_chain(error));
    match error {
        kube::Error::Api(status) if NOT_LET_IN.contains(&status.code) => Answers::Refused(text),
        _ => Answers::No(text),
    }
}
