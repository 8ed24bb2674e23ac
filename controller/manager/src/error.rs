//! Errors for the operator. Callers do not distinguish them.

use std::error::Error;
use std::fmt;

/// Any error.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// An error, with the operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Explained {
    what: String,
    source: BoxError,
}

/// Adds `what` before an error: the option, the file, or the failed operation.
pub(crate) fn explain<E: Into<BoxError>>(what: impl Into<String>) -> impl FnOnce(E) -> BoxError {
    let what = what.into();
    |error| {
        let source = error.into();
        Explained { what, source }.into()
    }
}

/// An error, with an action that corrects it.
#[derive(Debug)]
pub(crate) struct Hinted {
    error: BoxError,
    /// The action.
    pub(crate) hint: String,
    is_usage: bool,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Hinted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl Hinted {
    pub(crate) fn new(error: impl Into<BoxError>, hint: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            hint: hint.into(),
            is_usage: false,
        }
    }

    /// The error for a command that the operator did not confirm.
    pub(crate) fn unconfirmed(what: &str, hint: &str) -> Self {
        Self {
            error: what.into(),
            hint: hint.to_owned(),
            is_usage: true,
        }
    }

    /// Whether the error is caused by invalid usage.
    pub(crate) fn is_usage(&self) -> bool {
        self.is_usage
    }
}
