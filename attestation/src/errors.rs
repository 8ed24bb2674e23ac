//! Errors as text.

use std::error::Error;
use std::iter;

/// Returns the error from the function unless the condition holds, as `anyhow::ensure` does, with a typed error.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $error:expr) => {
        if !$condition {
            return Err($error);
        }
    };
}

/// The error and its causes on one line, with ": " between.
pub fn error_chain(error: &dyn Error) -> String {
    let chain = iter::successors(Some(error), |&error| error.source());
    let words: Vec<_> = chain.map(ToString::to_string).collect();
    words.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Cause(&'static str, #[source] Option<Box<Cause>>);

    #[test]
    fn the_causes_of_an_error_follow_it() {
        let cause = |source| Some(Box::new(Cause("the file is missing", source)));
        let root = Some(Box::new(Cause("not found", None)));

        assert_eq!(error_chain(&Cause("cannot start", None)), "cannot start");
        assert_eq!(
            error_chain(&Cause("cannot start", cause(root))),
            "cannot start: the file is missing: not found"
        );
    }
}
