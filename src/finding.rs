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
    /// Its name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// The finding of a check. It contains no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub(crate) state: State,
    /// The result: the error and its causes, if the check fails.
    pub(crate) what: String,
    /// The cure. Empty if there is nothing to do.
    pub(crate) cure: String,
}

impl Finding {
    /// All is well.
    pub fn pass(what: impl Into<String>) -> Self {
        Self {
            state: State::Pass,
            what: what.into(),
            cure: String::new(),
        }
    }

    /// The node works now. This may change.
    pub fn warn(failure: &Failure) -> Self {
        Self::of(State::Warn, failure)
    }

    /// The node does not work, or soon will not.
    pub fn fail(failure: &Failure) -> Self {
        Self::of(State::Fail, failure)
    }

    /// Nothing could be checked.
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

/// Takes the finding of the check with this name.
pub type Report<'a> = &'a dyn Fn(&'static str, Finding);
