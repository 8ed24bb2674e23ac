//! Errors for the operator: no caller tells one from another.

use std::error::Error;

/// Any error.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// An error, and what could not be done because of it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Explained {
    what: String,
    source: BoxError,
}

/// Puts `what` before an error: the option, the file, or the work that failed.
pub(crate) fn explain<E: Into<BoxError>>(what: impl Into<String>) -> impl FnOnce(E) -> BoxError {
    let what = what.into();
    |error| {
        let source = error.into();
        Explained { what, source }.into()
    }
}
