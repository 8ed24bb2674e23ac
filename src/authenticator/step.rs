//! The progress of a run.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::failure::{Code, Failure};
use crate::store::StoreLock;

/// A completed step. If a run is killed after any of them, the next run continues.
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
    /// The API server has the request, and the store says so.
    Acknowledged,
    /// The request failed with a challenge.
    Challenged,
    /// The answer to the challenge is ready.
    Answered,
    /// The request with the answer is saved.
    AnswerSaved,
    /// The API server has the request with the answer, and the store says so.
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

/// A callback after each step.
pub type Observer = Arc<dyn Fn(Step) + Send + Sync>;

/// The progress of a run, for the thread that waits for it.
pub(super) struct Steps {
    pub(super) last: Mutex<Step>,
    /// The lock, if the run holds it. The waiting thread records the failure under it if the run
    /// hangs.
    pub(super) lock: OnceLock<StoreLock>,
    pub(super) observer: Option<Observer>,
}

impl Steps {
    pub(super) fn done(&self, step: Step) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = step;
        if let Some(observer) = &self.observer {
            observer(step);
        }
    }

    /// The failure of a run that hangs.
    pub(super) fn stuck(&self, state_directory: &Path) -> Failure {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (code, what) = match last {
            Step::Started
            | Step::Locked
            | Step::Named
            | Step::OriginSaved
            | Step::Attested
            | Step::Answered
            | Step::BootstrapKubeconfigWritten
            | Step::KubeletKubeconfigWritten
            | Step::EnvironmentWritten => (Code::Store, "a file system does not answer"),
            Step::Decided | Step::CredentialStored | Step::Cleared => {
                (Code::Store, "a file system does not take the certificate")
            }
            Step::Loaded => (
                Code::EvidenceUnavailable,
                "the machine's provider ID was not there in time",
            ),
            Step::KeySaved | Step::Challenged => (
                Code::EvidenceUnavailable,
                "the evidence was not there in time",
            ),
            Step::RequestSaved | Step::AnswerSaved => {
                (Code::Unreachable, "the API server does not answer")
            }
            Step::Acknowledged | Step::AnswerAcknowledged => {
                (Code::Pending, "the request was not decided in time")
            }
        };
        let remedy = if code == Code::Store {
            format!(
                "look after the file systems of {} and of the kubeconfigs",
                state_directory.display()
            )
        } else {
            "nothing; the next run goes on from here".to_owned()
        };
        Failure::new(code, what, remedy)
    }
}
