//! The findings of `doctor`, one for each check.

use crate::failure::Failure;

/// The state of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Pass,
    Warn,
    Fail,
    Skip,
}

impl State {
    /// Returns the name of the state.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// The finding of a check. It never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub(crate) state: State,
    /// The result. If the check fails, the error and its causes.
    pub(crate) what: String,
    /// The hint. Empty if no action is necessary.
    pub(crate) cure: String,
}

impl Finding {
    /// The check passes.
    pub fn pass(what: impl Into<String>) -> Self {
        Self {
            state: State::Pass,
            what: what.into(),
            cure: String::new(),
        }
    }

    /// The node works now, but might stop working.
    pub fn warn(failure: &Failure) -> Self {
        Self::of(State::Warn, failure)
    }

    /// The node does not work, or will soon stop working.
    pub fn fail(failure: &Failure) -> Self {
        Self::of(State::Fail, failure)
    }

    /// The check could not run.
    pub fn skip(why: impl Into<String>) -> Self {
        Self {
            state: State::Skip,
            ..Self::pass(why)
        }
    }

    fn of(state: State, failure: &Failure) -> Self {
        Self {
            state,
            what: failure.what().to_owned(),
            cure: failure.remedy().to_owned(),
        }
    }
}

impl From<Result<Finding, Failure>> for Finding {
    fn from(result: Result<Finding, Failure>) -> Self {
        result.unwrap_or_else(|failure| Self::fail(&failure))
    }
}

/// Receives findings, each with the name of its check.
pub type Report<'a> = &'a dyn Fn(&'static str, Finding);
