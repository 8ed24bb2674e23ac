//! The meaning of the error codes of AWS.

/// The meaning of an error code: "Error codes for the Amazon EC2 API" and "Common errors" of STS, as far as a call
/// without parameters of a caller's own can give them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// AWS is asked too often.
    Throttled,
    /// A policy does not allow the call.
    NotAllowed,
    /// AWS does not accept the credentials of the call. It may accept others of the same principal.
    Session,
    /// The account may not use the service, or the request is not signed as it must be.
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
            // EC2 says `AuthFailure` and `RequestExpired` of a session where STS says `InvalidClientTokenId` and
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

/// A code or an ID of a request, of AWS, but neither bounded nor checked before.
pub(crate) fn bounded(text: &str) -> String {
    let is_kept = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    text.chars().filter(is_kept).take(64).collect()
}
