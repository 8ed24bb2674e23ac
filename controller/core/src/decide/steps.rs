//! The checks of one decision, and their durations.

use std::future::Future;
use std::time::Duration;

/// A monotonic clock: the time since some moment.
pub type Elapsed = fn() -> Duration;

/// A check that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its stable name, for logs: one for each link of the chain in [`crate::request`].
    pub check: &'static str,
    /// Its duration.
    pub took: Duration,
    /// The observation, for a person, if the check passed and the decision is [explained](super::explain).
    pub saw: Option<String>,
}

pub(super) struct Steps {
    pub(super) taken: Vec<Step>,
    elapsed: Elapsed,
    explains: bool,
}

impl Steps {
    pub(super) fn timed_by(elapsed: Elapsed) -> Self {
        Self {
            taken: Vec::new(),
            elapsed,
            explains: false,
        }
    }

    /// The same, which keep what the checks see.
    pub(super) fn explained(self) -> Self {
        Self {
            explains: true,
            ..self
        }
    }

    /// Keeps what the last check saw, which passed.
    pub(super) fn saw(&mut self, text: impl FnOnce() -> String) {
        if self.explains
            && let Some(step) = self.taken.last_mut()
        {
            step.saw = Some(text());
        }
    }

    pub(super) fn take<T>(&mut self, check: &'static str, make: impl FnOnce() -> T) -> T {
        let begin = (self.elapsed)();
        let result = make();
        self.took(check, begin);
        result
    }

    pub(super) async fn wait<T>(
        &mut self,
        check: &'static str,
        made: impl Future<Output = T>,
    ) -> T {
        let begin = (self.elapsed)();
        let result = made.await;
        self.took(check, begin);
        result
    }

    fn took(&mut self, check: &'static str, begin: Duration) {
        let took = (self.elapsed)().saturating_sub(begin);
        self.taken.push(Step {
            check,
            took,
            saw: None,
        });
    }
}
