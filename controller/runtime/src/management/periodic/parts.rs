//! The parts of a round, each of which has a deadline.

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use kubelet_attestation::errors::error_chain;
use tokio::time::timeout;

/// The deadline for one part of the work: a few small calls, each with its own deadline.
pub(super) const PART_DEADLINE: Duration = Duration::from_mins(1);

/// The maximum length of an error message. A longer message is truncated, because an API server can return any text.
const MAX_MESSAGE_LEN: usize = 512;

/// The failure of one part of the work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::management) enum PartError {
    /// The part did not finish before this deadline.
    #[error("not completed within {} s", .0.as_secs())]
    Late(Duration),
    /// A call failed. Contains the error and its causes, truncated.
    #[error("{0}")]
    Call(String),
    /// The list of Nodes has more pages than this number.
    #[error("their list has more than {0} pages")]
    TooManyPages(usize),
}

impl PartError {
    /// The failure of a call.
    pub(super) fn of(error: &dyn Error) -> Self {
        Self::Call(cut(error_chain(error)))
    }
}

/// Runs one part of the work within [`PART_DEADLINE`], in a separate allocation.
pub(super) fn part<T, E: Error + 'static>(
    work: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<T, PartError>> {
    part_within(PART_DEADLINE, work)
}

/// Runs one part of the work within this deadline.
pub(super) fn part_within<T, E: Error + 'static>(
    deadline: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<T, PartError>> {
    let work = Box::pin(work);
    async move {
        let done = timeout(deadline, work).await;
        let done = done.map_err(|_| PartError::Late(deadline))?;
        done.map_err(|error| PartError::of(&error))
    }
}

pub(super) fn cut(text: impl Display) -> String {
    text.to_string().chars().take(MAX_MESSAGE_LEN).collect()
}
