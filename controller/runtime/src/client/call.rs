//! One call of an API server: its deadline, its failure, and what every write says of us.

use std::time::Duration;

use kube::api::{PatchParams, PostParams};
use node_attestation_core::refusal::Unavailable;
use tokio::time::timeout;

/// The name of this controller, as the API server remembers which fields are ours, and as Events have it.
pub(crate) const CONTROLLER: &str = "node-attestation-controller";

/// Deadline of a call about one small object. An API server under load answers within its own limit of 60 s for
/// others.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// HTTP status of an object that exists already, or has changed.
const CONFLICT: u16 = 409;

/// A call was not answered, or was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It had no answer in time.
    #[error("the API server gave no answer in {} s", .0.as_secs())]
    Deadline(Duration),
    /// It was refused, or failed.
    #[error("the API server did not do it")]
    Api(#[source] Box<kube::Error>),
}

impl CallError {
    fn is(&self, holds: impl FnOnce(&kube::core::Status) -> bool) -> bool {
        matches!(self, Self::Api(error) if matches!(&**error, kube::Error::Api(status) if holds(status)))
    }

    /// Whether the object exists already, or is not the version that was read.
    pub(crate) fn is_conflict(&self) -> bool {
        self.is(|status| status.code == CONFLICT)
    }

    /// Whether there is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        self.is(kube::core::Status::is_not_found)
    }
}

impl From<CallError> for Unavailable {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Deadline(_) => Self::new(error),
            CallError::Api(error) => Self::new(*error),
        }
    }
}

/// Calls, for no longer than [`CALL_DEADLINE`].
pub(crate) async fn call<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    in_time(CALL_DEADLINE, call).await
}

/// Calls, for no longer than `deadline`.
pub(crate) async fn in_time<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    let answer = timeout(deadline, call).await;
    let answer = answer.map_err(|_| CallError::Deadline(deadline))?;
    answer.map_err(|error| CallError::Api(Box::new(error)))
}

/// The parameters of a write of a whole object as `manager`.
pub(crate) fn post(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    }
}

/// The parameters of a merge patch as `manager`.
pub(crate) fn merge(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    }
}
