//! The meaning of AWS error codes, and the parts of AWS messages that are used.

use std::error::Error;

use kubelet_attestation::errors::{error_chain, shortened};

/// The maximum length of an error's causes, in bytes, because they become part of conditions.
const MAX_CAUSES: usize = 512;

/// The meaning of an error code. The codes come from "Error codes for the Amazon EC2 API" and "Common errors" of STS.
/// Codes that only caller-specific parameters can cause are omitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// AWS throttles the calls.
    Throttled,
    /// A policy does not allow the call.
    NotAllowed,
    /// AWS does not accept the credentials of the call. AWS might accept other credentials of the same principal.
    Session,
    /// The account cannot use the service, or the request is not signed correctly.
    Account,
    /// Another error.
    Other,
}

impl Meaning {
    /// The meaning of this code.
    pub(crate) fn of(code: &str) -> Self {
        match code {
            "BandwidthLimitExceeded"
            | "RequestLimitExceeded"
            | "RequestThrottled"
            | "RequestThrottledException"
            | "SlowDown"
            | "Throttling"
            | "ThrottlingException"
            | "TooManyRequestsException" => Self::Throttled,
            "AccessDenied" | "AccessDeniedException" | "UnauthorizedOperation" => Self::NotAllowed,
            // For a session, EC2 returns `AuthFailure` and `RequestExpired`, and STS returns `InvalidClientTokenId` and
            // `ExpiredToken`.
            "AuthFailure"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "InvalidClientTokenId"
            | "RequestExpired"
            | "SignatureDoesNotMatch"
            | "UnrecognizedClientException" => Self::Session,
            "Blocked"
            | "IncompleteSignature"
            | "MissingAuthenticationToken"
            | "OptInRequired"
            | "PendingVerification" => Self::Account,
            _ => Self::Other,
        }
    }
}

/// Truncates and filters a code or a request ID from AWS.
pub(crate) fn bounded(text: &str) -> String {
    let is_kept = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    text.chars().filter(is_kept).take(64).collect()
}

/// Formats an SDK error with its causes, which contain the details, on one line with a limited length.
pub(crate) fn causes(error: &dyn Error) -> String {
    let text = error_chain(error).replace(char::is_control, " ");
    let kept = shortened(&text, MAX_CAUSES);
    if kept.len() < text.len() {
        format!("{kept}...")
    } else {
        text
    }
}

/// The action that AWS denies, from its `AccessDenied` message.
pub(crate) fn denied_action(message: &str) -> Option<String> {
    let (_, action) = message.split_once("is not authorized to perform: ")?;
    let end = action.find(char::is_whitespace).unwrap_or(action.len());
    let action = action.get(..end)?;
    let (service, operation) = action.split_once(':')?;
    let is_word = |text: &str| {
        let is_kept = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=64).contains(&text.len()) && text.chars().all(is_kept)
    };
    (is_word(service) && is_word(operation)).then(|| action.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Cause(String, #[source] Option<Box<Cause>>);

    #[test]
    fn error_causes_are_truncated_to_one_line() {
        let inner = Cause("Not authorized\r\nto \u{1b}[1massume".to_owned(), None);
        let outer = Cause("an error occurred".to_owned(), Some(Box::new(inner)));
        let expected = "an error occurred: Not authorized  to  [1massume";
        assert_eq!(causes(&outer), expected);
        let long = Cause("é".repeat(300), None);
        assert_eq!(causes(&long), format!("{}...", "é".repeat(256)));
    }

    #[test]
    fn only_the_known_format_of_a_denied_action_is_parsed() {
        let message = |action: &str| {
            format!(
                "User: arn:aws:sts::111122223333:assumed-role/a/b is not authorized to perform: {action}"
            )
        };
        for (message, expected) in [
            (
                message("sts:TagSession on resource: arn:aws:iam::1:role/c"),
                Some("sts:TagSession"),
            ),
            (message("sts:AssumeRole"), Some("sts:AssumeRole")),
            (message("nothing"), None),
            (message(":"), None),
            (message("sts:<b> on"), None),
            (message(&format!("sts:{}", "A".repeat(65))), None),
            ("Access denied".to_owned(), None),
        ] {
            assert_eq!(denied_action(&message).as_deref(), expected, "{message}");
        }
    }
}
