//! The checks for one request that need much processor time: the signatures and the PCR values.
//!
//! A tenant chooses the listed authorities and PCR values, and sends the chains in its requests. Therefore the number
//! of checks is limited, and the checks for all Clusters take turns by namespace.

use node_attestation_core::pace::yield_now;
use node_attestation_runtime::turns::Line;

use crate::denial::TpmDenial;

/// The maximum number of checks for one request. A chain with the maximum length needs 6. Each listed authority that
/// has the same name as another authority, but a different key, can require one more check.
pub(crate) const MAX_CHECKS: usize = 16;

/// The checks for one request, which wait in the queue of the request's Cluster.
#[derive(Debug)]
pub(crate) struct Checks<'a> {
    line: &'a Line,
    left: usize,
}

/// The error for a request that needs more signature checks than [`MAX_CHECKS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyChecks;

impl From<TooManyChecks> for TpmDenial {
    fn from(TooManyChecks: TooManyChecks) -> Self {
        Self::EndorsementCertificateTooManyChecks(MAX_CHECKS)
    }
}

impl<'a> Checks<'a> {
    /// Creates the checks for a request, in this Cluster's queue.
    pub(crate) const fn of(line: &'a Line) -> Self {
        Self {
            line,
            left: MAX_CHECKS,
        }
    }

    /// Runs one check when its turn comes, after the other tasks on this thread.
    pub(crate) async fn run<T>(&mut self, check: impl FnOnce() -> T) -> Result<T, TooManyChecks> {
        self.left = self.left.checked_sub(1).ok_or(TooManyChecks)?;
        yield_now().await;
        let _turn = self.line.turn().await;
        Ok(check())
    }

    /// The number of started checks.
    #[cfg(test)]
    pub(crate) const fn count(&self) -> usize {
        MAX_CHECKS - self.left
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::task::{Context, Waker};

    use futures::executor::block_on;
    use futures::future::join_all;
    use node_attestation_core::testing::pauses;
    use node_attestation_runtime::capi::ObjectKey;
    use node_attestation_runtime::turns::{CALCULATIONS, FairTurns};

    use super::*;

    #[test]
    fn checks_beyond_the_limit_of_a_request_do_not_run() {
        let line = FairTurns::new(CALCULATIONS).line(&ObjectKey::new("a", "1"));
        let mut checks = Checks::of(&line);
        let mut run = 0;
        for _ in 0..MAX_CHECKS {
            // Other tasks run before each of these checks.
            assert_eq!(pauses(checks.run(|| run += 1)), (Ok(()), 1));
        }

        assert_eq!(block_on(checks.run(|| run += 1)), Err(TooManyChecks));
        assert_eq!((run, checks.count()), (MAX_CHECKS, MAX_CHECKS));
    }

    #[test]
    fn signature_checks_take_turns_by_namespace() {
        let turns = FairTurns::new(CALCULATIONS);
        let order: RefCell<Vec<&str>> = RefCell::default();
        let clusters = (0..40).map(|number| ObjectKey::new("a", number.to_string()));
        let clusters = clusters.chain([ObjectKey::new("b", "1")]);
        let lines: Vec<_> = clusters
            .map(|cluster| (turns.line(&cluster), cluster.namespace == "b"))
            .collect();
        // No turn is free while the requests arrive.
        let first = [0, 40].map(|index| lines[index].0.try_turn().unwrap());
        let requests = lines.iter().map(|(line, is_other)| {
            let order = &order;
            async move {
                let mut checks = Checks::of(line);
                let namespace = if *is_other { "b" } else { "a" };
                let run = checks.run(|| order.borrow_mut().push(namespace));
                assert_eq!(run.await, Ok(()));
            }
        });
        let mut all = Box::pin(join_all(requests));
        // Loops until all requests wait.
        for _ in 0..100 {
            let mut context = Context::from_waker(Waker::noop());
            assert!(all.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(order.borrow().len(), 0);

        drop(first);
        block_on(all);

        let order = order.borrow();
        assert_eq!(order.len(), 41);
        let at = order.iter().position(|namespace| *namespace == "b");
        assert!(at.is_some_and(|at| at <= 2), "{order:?}");
    }
}
