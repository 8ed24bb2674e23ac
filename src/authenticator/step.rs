//! The progress of a run.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::failure::{Code, Failure};
use crate::log::Log;
use crate::store::StoreLock;

/// A completed step. If a run is killed after a step, the next run continues with the following step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// No step is complete.
    Started,
    /// The run holds the lock.
    Locked,
    /// The store is read, and a new credential is needed.
    Loaded,
    /// The node's name and the machine's provider ID are known.
    Named,
    /// The origin is saved: machine, node and cluster.
    OriginSaved,
    /// The key is saved.
    KeySaved,
    /// The evidence is ready.
    Attested,
    /// The request is saved.
    RequestSaved,
    /// The API server has the request, and the store records this.
    Acknowledged,
    /// The request failed with a challenge.
    Challenged,
    /// The answer to the challenge is ready.
    Answered,
    /// The request that answers the challenge is saved.
    AnswerSaved,
    /// The API server has the request that answers the challenge, and the store records this.
    AnswerAcknowledged,
    /// The request is decided.
    Decided,
    /// The certificate is checked and stored.
    CredentialStored,
    /// The saved request and the recorded failure are removed.
    Cleared,
    /// `setup` has written the bootstrap kubeconfig.
    BootstrapKubeconfigWritten,
    /// `setup` has written the kubelet's kubeconfig.
    KubeletKubeconfigWritten,
    /// `setup` has written the kubelet's arguments.
    EnvironmentWritten,
}

impl Step {
    /// Returns the name of the step in the log.
    fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Locked => "the lock is held",
            Self::Loaded => "the store is read",
            Self::Named => "the node name and the machine are known",
            Self::OriginSaved => "the origin is saved",
            Self::KeySaved => "the key is saved",
            Self::Attested => "the evidence is ready",
            Self::RequestSaved => "the request is saved",
            Self::Acknowledged => "the API server has the request",
            Self::Challenged => "the request has a challenge",
            Self::Answered => "the answer is ready",
            Self::AnswerSaved => "the answer is saved",
            Self::AnswerAcknowledged => "the API server has the answer",
            Self::Decided => "the request is decided",
            Self::CredentialStored => "the certificate is stored",
            Self::Cleared => "the request is cleared",
            Self::BootstrapKubeconfigWritten => "the bootstrap kubeconfig is written",
            Self::KubeletKubeconfigWritten => "the kubelet's kubeconfig is written",
            Self::EnvironmentWritten => "the kubelet's arguments are written",
        }
    }
}

/// A callback that a run calls after each step.
pub type Observer = Arc<dyn Fn(Step) + Send + Sync>;

/// The progress of a run, for the thread that waits for it.
pub(super) struct Steps {
    /// The last step, and the time of its completion.
    last: Mutex<(Step, Instant)>,
    /// The lock, if the run holds it. If the run hangs, the waiting thread uses this lock to record the failure.
    pub(super) lock: OnceLock<StoreLock>,
    observer: Option<Observer>,
    log: Log,
}

impl Steps {
    pub(super) fn new(log: Log, observer: Option<Observer>) -> Self {
        Self {
            last: Mutex::new((Step::Started, Instant::now())),
            lock: OnceLock::new(),
            observer,
            log,
        }
    }

    /// Logs the step with the time since the previous step.
    pub(super) fn done(&self, step: Step) {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let millis = now.saturating_duration_since(last.1).as_millis();
        *last = (step, now);
        drop(last);
        self.log
            .step(&format!("{}, after {millis} ms", step.name()));
        if let Some(observer) = &self.observer {
            observer(step);
        }
    }

    /// Returns the failure for a run that hangs.
    pub(super) fn stuck(&self, state_directory: &Path) -> Failure {
        let (last, _) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (code, what) = match last {
            Step::Started
            | Step::Locked
            | Step::Named
            | Step::OriginSaved
            | Step::Attested
            | Step::Answered
            | Step::BootstrapKubeconfigWritten
            | Step::KubeletKubeconfigWritten
            | Step::EnvironmentWritten => (Code::Store, "a file system did not respond in time"),
            Step::Decided | Step::CredentialStored | Step::Cleared => (
                Code::Store,
                "a file system did not store the certificate in time",
            ),
            Step::Loaded => (
                Code::EvidenceUnavailable,
                "cannot determine the machine's provider ID in time",
            ),
            Step::KeySaved | Step::Challenged => {
                (Code::EvidenceUnavailable, "cannot get the evidence in time")
            }
            Step::RequestSaved | Step::AnswerSaved => {
                (Code::Unreachable, "the API server did not respond in time")
            }
            Step::Acknowledged | Step::AnswerAcknowledged => {
                (Code::Pending, "the request was not decided in time")
            }
        };
        let remedy = if code == Code::Store {
            format!(
                "check the file systems of {} and of the kubeconfigs",
                state_directory.display()
            )
        } else {
            "no action is needed: the next run continues from here".to_owned()
        };
        Failure::new(code, what, remedy)
    }
}
