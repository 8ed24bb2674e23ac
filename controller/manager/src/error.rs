//! Errors for the operator. No caller distinguishes them.

use std::error::Error;

/// Any error.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// An error, with the operation that failed because of it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Explained {
    what: String,
    source: BoxError,
}

/// Puts `what` before an error: the option, the file, or the operation that failed.
pub(crate) fn explain<E: Into<BoxError>>(what: impl Into<String>) -> impl FnOnce(E) -> BoxError {
    let what = what.into();
    |error| {
        let source = error.into();
        Explained { what, source }.into()
    }
}
