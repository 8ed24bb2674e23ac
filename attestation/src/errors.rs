//! Error texts.

use std::error::Error;
use std::iter;

/// Returns the error from the function unless the condition holds: `anyhow::ensure` for typed errors.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $error:expr) => {
        if !$condition {
            return Err($error);
        }
    };
}

/// The maximum size of an error text, in bytes. An error can repeat external text of unlimited size, and the log
/// contains the error for each request.
const MAX_LEN: usize = 4096;

/// The error and its causes on one line, separated by ": ". A cause is omitted if the preceding text already ends with
/// this cause. A string of more than 4096 bytes is truncated, and ends with "...".
pub fn error_chain(error: &dyn Error) -> String {
    let chain = iter::successors(Some(error), |&error| error.source());
    let mut words: Vec<String> = Vec::new();
    for cause in chain.map(ToString::to_string) {
        if words.last().is_none_or(|before| !before.ends_with(&cause)) {
            words.push(cause);
        }
    }
    let mut text = words.join(": ");
    if text.len() > MAX_LEN {
        text.truncate(text.floor_char_boundary(MAX_LEN));
        text.push_str("...");
    }
    text
}

/// The longest prefix of the text that has at most `len` bytes and ends at a character boundary.
pub fn shortened(text: &str, len: usize) -> &str {
    text.get(..text.floor_char_boundary(len)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Cause(&'static str, #[source] Option<Box<Cause>>);

    #[test]
    fn the_causes_of_an_error_follow_its_text() {
        let cause = |source| Some(Box::new(Cause("the file is missing", source)));
        let root = Some(Box::new(Cause("not found", None)));

        assert_eq!(error_chain(&Cause("cannot start", None)), "cannot start");
        assert_eq!(
            error_chain(&Cause("cannot start", cause(root))),
            "cannot start: the file is missing: not found"
        );
    }

    #[test]
    fn a_cause_that_the_error_text_already_contains_is_skipped() {
        let cause = |text, source| Some(Box::new(Cause(text, source)));
        let repeated = cause("the file is missing: not found", cause("not found", None));
        let unlike = cause("not found", cause("the file is missing", None));

        assert_eq!(
            error_chain(&Cause("cannot start", repeated)),
            "cannot start: the file is missing: not found"
        );
        assert_eq!(
            error_chain(&Cause("cannot start", unlike)),
            "cannot start: not found: the file is missing"
        );
    }

    #[test]
    fn a_long_error_text_is_truncated() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0} does not exist")]
        struct Missing(String);

        let at_most = Missing("a".repeat(MAX_LEN - " does not exist".len()));
        assert_eq!(error_chain(&at_most), at_most.to_string());
        let longer = error_chain(&Missing("\u{e9}".repeat(1 << 20)));
        assert_eq!(longer.len(), MAX_LEN + 3);
        assert!(longer.ends_with("\u{e9}..."));
    }

    #[test]
    fn text_is_truncated_between_characters() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "abc");
        assert_eq!(shortened("ab\u{e9}", 3), "ab");
    }
}
