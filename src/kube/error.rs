//! Errors between a node and its API server.

use std::io;
use std::time::SystemTime;

use super::kubeconfig::Refused;
use super::types::Malformed;

/// A call to the API server failed.
///
/// Each variant names the server. None contains a credential, because neither the request nor its
/// headers are repeated.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// There is no connection, or it broke.
    #[error("cannot reach {server}: {why}")]
    Unreachable {
        /// The API server's URL.
        server: String,
        /// The innermost cause.
        why: String,
    },
    /// TLS failed.
    #[error("TLS with {server} failed: {fault}")]
    Tls {
        /// The API server's URL.
        server: String,
        /// The cause.
        fault: String,
    },
    /// The deadline passed before the answer was complete.
    #[error("{server} did not answer in time ({what})")]
    TimedOut {
        /// The API server's URL.
        server: String,
        /// The action that timed out.
        what: &'static str,
    },
    /// 401: the credential is missing, expired or unknown.
    #[error(
        "{server} does not accept the credential (401 Unauthorized){}",
        colon(message)
    )]
    Unauthorized {
        /// The API server's URL.
        server: String,
        /// The server's message.
        message: String,
    },
    /// 403: the credential is valid, but not authorized for the request.
    #[error("{server} forbids it (403 Forbidden){}", colon(message))]
    Forbidden {
        /// The API server's URL.
        server: String,
        /// The server's message.
        message: String,
    },
    /// Another 4xx: the API server refuses the request itself.
    #[error("{server} refuses the request ({status} {reason}){}", colon(message))]
    Refused {
        /// The API server's URL.
        server: String,
        /// The HTTP status.
        status: u16,
        /// The server's reason, in one word.
        reason: String,
        /// The server's message.
        message: String,
    },
    /// 429, even after the pauses that the server asked for.
    #[error("{server} has too many requests (429){}", colon(message))]
    TooManyRequests {
        /// The API server's URL.
        server: String,
        /// The server's message.
        message: String,
    },
    /// 5xx, even after the pauses that the server asked for.
    #[error("{server} is out of order ({status}){}", colon(message))]
    Server {
        /// The API server's URL.
        server: String,
        /// The HTTP status.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// 3xx, or another status that no API server returns.
    #[error("{server} answers {status}, which no API server does; is something between us and it?")]
    NotAnApiServer {
        /// The API server's URL.
        server: String,
        /// The HTTP status.
        status: u16,
    },
    /// The answer exceeds the limit.
    #[error("the answer of {server} is longer than {limit} bytes")]
    TooLarge {
        /// The API server's URL.
        server: String,
        /// The limit.
        limit: u64,
    },
    /// The answer is not JSON, or not the requested object.
    #[error("the answer of {server} is not the object that was asked for")]
    NotAnObject {
        /// The API server's URL.
        server: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A field of the answer is invalid.
    #[error("the answer of {server} cannot be understood")]
    Malformed {
        /// The API server's URL.
        server: String,
        /// The field.
        source: Malformed,
    },
    /// The clocks of the API server and of this machine are too far apart for certificates.
    #[error(
        "the clock of {server} says {}, ours says {}; set the clock",
        humantime::format_rfc3339_seconds(*theirs),
        humantime::format_rfc3339_seconds(*ours)
    )]
    ClockSkew {
        /// The API server's URL.
        server: String,
        /// The time in its `Date` header.
        theirs: SystemTime,
        /// This machine's time when the answer arrived.
        ours: SystemTime,
    },
    /// The endpoint or the credential cannot be used.
    #[error("cannot talk to {server}: {field}: {why}")]
    Unusable {
        /// The API server's URL.
        server: String,
        /// The invalid field.
        field: &'static str,
        /// The reason.
        why: Refused,
    },
    /// The client could not be built.
    #[error("cannot start the client for {server}")]
    Client {
        /// The API server's URL.
        server: String,
        /// The reason.
        source: io::Error,
    },
}

fn colon(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}
