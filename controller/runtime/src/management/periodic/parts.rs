//! The parts of a round, each with its deadline.

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use kubelet_attestation::errors::error_chain;
use tokio::time::timeout;

/// The deadline for one part of the work: a few small calls, each with its own deadline.
pub(super) const PART_DEADLINE: Duration = Duration::from_mins(1);

/// The maximum length of errors, which are truncated. An API server can send any text.
const MAX_MESSAGE_LEN: usize = 512;

/// Runs one part of the work within [`PART_DEADLINE`], in a separate allocation.
pub(super) fn part<T, E: Error + 'static>(
    work: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<T, String>> {
    part_within(PART_DEADLINE, work)
}

/// Runs one part of the work within this deadline.
pub(super) fn part_within<T, E: Error + 'static>(
    deadline: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<T, String>> {
    let work = Box::pin(work);
    async move {
        let done = timeout(deadline, work).await.map_err(|_| late(deadline))?;
        done.map_err(|error| cut(error_chain(&error)))
    }
}

pub(super) fn late(deadline: Duration) -> String {
    format!("not completed within {} s", deadline.as_secs())
}

pub(super) fn cut(text: impl Display) -> String {
    text.to_string().chars().take(MAX_MESSAGE_LEN).collect()
}
