//! What can go wrong between a node and its API server.

use std::io;
use std::time::SystemTime;

use super::kubeconfig::Refused;
use super::types::Malformed;

/// The API server did not do what it was asked.
///
/// Each variant names the server. None holds a credential: neither the request nor its headers are
/// repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// No connection, or it was cut.
    #[error("cannot reach {server}: {why}")]
    Unreachable {
        /// The API server's URL.
        server: String,
        /// What failed, with its causes.
        why: String,
    },
    /// The two sides do not agree on TLS.
    #[error("TLS with {server} failed: {fault}")]
    Tls {
        /// The API server's URL.
        server: String,
        /// What is wrong.
        fault: TlsFault,
    },
    /// The deadline passed before the answer was whole.
    #[error("{server} did not answer in time ({what})")]
    TimedOut {
        /// The API server's URL.
        server: String,
        /// What was being done.
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
        /// What the server says.
        message: String,
    },
    /// 403: the credential is known and does not suffice.
    #[error("{server} forbids it (403 Forbidden){}", colon(message))]
    Forbidden {
        /// The API server's URL.
        server: String,
        /// What the server says.
        message: String,
    },
    /// Another 4xx: the request itself is refused.
    #[error("{server} refuses the request ({status} {reason}){}", colon(message))]
    Refused {
        /// The API server's URL.
        server: String,
        /// The HTTP status.
        status: u16,
        /// The server's word for it.
        reason: String,
        /// What the server says.
        message: String,
    },
    /// 429, also after the pauses that the server asked for.
    #[error("{server} has too many requests (429){}", colon(message))]
    TooManyRequests {
        /// The API server's URL.
        server: String,
        /// What the server says.
        message: String,
    },
    /// 5xx, also after the pauses that the server asked for.
    #[error("{server} is out of order ({status}){}", colon(message))]
    Server {
        /// The API server's URL.
        server: String,
        /// The HTTP status.
        status: u16,
        /// What the server says.
        message: String,
    },
    /// 3xx or another status that no API server gives.
    #[error("{server} answers {status}, which no API server does; is something between us and it?")]
    NotAnApiServer {
        /// The API server's URL.
        server: String,
        /// The HTTP status.
        status: u16,
    },
    /// The answer is longer than any that is asked for.
    #[error("the answer of {server} is longer than {limit} bytes")]
    TooLarge {
        /// The API server's URL.
        server: String,
        /// The limit.
        limit: u64,
    },
    /// The answer is not JSON, or not the object that was asked for.
    #[error("the answer of {server} is not the object that was asked for")]
    NotAnObject {
        /// The API server's URL.
        server: String,
        /// Where it stops being one.
        source: serde_json::Error,
    },
    /// The answer is an object with a field that cannot be.
    #[error("the answer of {server} cannot be understood")]
    Malformed {
        /// The API server's URL.
        server: String,
        /// Which field.
        source: Malformed,
    },
    /// The API server's clock and ours are too far apart for certificates to make sense.
    #[error(
        "the clock of {server} says {}, ours says {}; set the clock",
        humantime::format_rfc3339_seconds(*theirs),
        humantime::format_rfc3339_seconds(*ours)
    )]
    ClockSkew {
        /// The API server's URL.
        server: String,
        /// What its `Date` header says.
        theirs: SystemTime,
        /// What our clock said when it came.
        ours: SystemTime,
    },
    /// The endpoint or the credential cannot be used.
    #[error("cannot talk to {server}: {field}: {why}")]
    Unusable {
        /// The API server's URL.
        server: String,
        /// What cannot be used.
        field: &'static str,
        /// The reason.
        why: Refused,
    },
    /// The client could not be made.
    #[error("cannot start the client for {server}")]
    Client {
        /// The API server's URL.
        server: String,
        /// The reason.
        source: io::Error,
    },
}

/// Why TLS failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// Somebody else's certificate.
    #[error("the server's certificate is not signed by the cluster's CA")]
    UnknownAuthority,
    /// A certificate for another name.
    #[error("the server's certificate is not for {name:?}")]
    WrongName {
        /// The name it was expected to be for.
        name: String,
    },
    /// A certificate that is over, or a clock that is ahead.
    #[error("the server's certificate has expired, or our clock is ahead")]
    Expired,
    /// A certificate that has not begun, or a clock that is behind.
    #[error("the server's certificate is not valid yet, or our clock is behind")]
    NotYetValid,
    /// The server broke off, as a rule because it does not take our certificate.
    #[error("the server broke off with the alert {alert}")]
    Alert {
        /// The alert.
        alert: String,
    },
    /// Anything else.
    #[error("{why}")]
    Other {
        /// What rustls says.
        why: String,
    },
}

fn colon(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}
