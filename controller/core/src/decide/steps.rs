//! The checks of one decision, and their durations.

use std::future::Future;
use std::time::Duration;

/// A monotonic clock: the time since an arbitrary moment.
pub type Elapsed = fn() -> Duration;

/// A completed check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The stable name of the check, for logs and for `explain`. Each link of the chain in [`crate::request`] has a
    /// name.
    pub check: &'static str,
    /// The duration of the check.
    pub took: Duration,
    /// The observation from the check, for operators. Set if the check passed, and if the decision is
    /// [explained](super::explain).
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

    /// Returns the same steps, which also store observations.
    pub(super) fn explained(self) -> Self {
        Self {
            explains: true,
            ..self
        }
    }

    /// Stores the observation from the last check, which passed.
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

    /// Waits for a check and records its duration. The check's future is boxed. Otherwise the decision's future would
    /// reserve space for the largest check.
    pub(super) fn wait<T>(
        &mut self,
        check: &'static str,
        made: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        let made = Box::pin(made);
        async move {
            let begin = (self.elapsed)();
            let result = made.await;
            self.took(check, begin);
            result
        }
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
