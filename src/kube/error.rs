//! Errors between a node and its API server.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::SystemTime;

use humantime::format_rfc3339_seconds;

use super::kubeconfig::Refused;
use super::types::Malformed;

/// A call to the API server failed.
///
/// It contains no credential, because neither the request nor its headers are repeated.
#[derive(Debug)]
pub struct ApiError {
    /// The API server's URL.
    pub server: String,
    /// What failed.
    pub fault: ApiFault,
}

/// What failed in a call to the API server.
#[derive(Debug)]
pub enum ApiFault {
    /// There is no connection, or it broke. With the innermost cause.
    Unreachable(String),
    /// TLS failed, for this reason.
    Tls(String),
    /// The deadline passed before the answer to this action was complete.
    TimedOut(&'static str),
    /// 401: the credential is missing, expired or unknown. With the server's message.
    Unauthorized(String),
    /// 403: the credential is valid, but not authorized for the request. With the server's message.
    Forbidden(String),
    /// Another 4xx: the API server refuses the request itself.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The server's reason, in one word.
        reason: String,
        /// The server's message.
        message: String,
    },
    /// 429, even after the pauses that the server asked for. With the server's message.
    TooManyRequests(String),
    /// 5xx, even after the pauses that the server asked for.
    Server {
        /// The HTTP status.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// 3xx, or another status that no API server returns.
    NotAnApiServer(u16),
    /// The answer exceeds this limit.
    TooLarge(u64),
    /// The answer is not JSON, or not the requested object.
    NotAnObject(serde_json::Error),
    /// This field of the answer is invalid.
    Malformed(Malformed),
    /// The clocks of the API server and of this machine are too far apart for certificates.
    ClockSkew {
        /// The time in its `Date` header.
        theirs: SystemTime,
        /// This machine's time when the answer arrived.
        ours: SystemTime,
    },
    /// The endpoint or the credential cannot be used.
    Unusable {
        /// The invalid field.
        field: &'static str,
        /// The reason.
        why: Refused,
    },
    /// The client could not be built.
    Client(io::Error),
}

impl ApiFault {
    pub(super) fn of(self, server: &str) -> ApiError {
        ApiError {
            server: server.to_owned(),
            fault: self,
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.server;
        match &self.fault {
            ApiFault::Unreachable(why) => write!(f, "cannot reach {server}: {why}"),
            ApiFault::Tls(why) => write!(f, "TLS with {server} failed: {why}"),
            ApiFault::TimedOut(what) => write!(f, "{server} did not answer in time ({what})"),
            ApiFault::Unauthorized(message) => {
                write!(
                    f,
                    "{server} does not accept the credential (401 Unauthorized)"
                )?;
                colon(f, message)
            }
            ApiFault::Forbidden(message) => {
                write!(f, "{server} forbids it (403 Forbidden)")?;
                colon(f, message)
            }
            ApiFault::Refused {
                status,
                reason,
                message,
            } => {
                write!(f, "{server} refuses the request ({status} {reason})")?;
                colon(f, message)
            }
            ApiFault::TooManyRequests(message) => {
                write!(f, "{server} has too many requests (429)")?;
                colon(f, message)
            }
            ApiFault::Server { status, message } => {
                write!(f, "{server} is out of order ({status})")?;
                colon(f, message)
            }
            ApiFault::NotAnApiServer(status) => write!(
                f,
                "{server} answers {status}, which no API server does; is something between us and it?"
            ),
            ApiFault::TooLarge(limit) => {
                write!(f, "the answer of {server} is longer than {limit} bytes")
            }
            ApiFault::NotAnObject(_) => {
                write!(
                    f,
                    "the answer of {server} is not the object that was asked for"
                )
            }
            ApiFault::Malformed(_) => write!(f, "the answer of {server} cannot be understood"),
            ApiFault::ClockSkew { theirs, ours } => {
                let [theirs, ours] = [theirs, ours].map(|time| format_rfc3339_seconds(*time));
                write!(
                    f,
                    "the clock of {server} says {theirs}, ours says {ours}; set the clock"
                )
            }
            ApiFault::Unusable { field, why } => {
                write!(f, "cannot talk to {server}: {field}: {why}")
            }
            ApiFault::Client(_) => write!(f, "cannot start the client for {server}"),
        }
    }
}

/// The server's message, if there is one.
fn colon(f: &mut fmt::Formatter<'_>, message: &str) -> fmt::Result {
    if message.is_empty() {
        return Ok(());
    }
    write!(f, ": {message}")
}

impl Error for ApiError {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other faults have no source"
    )]
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.fault {
            ApiFault::NotAnObject(source) => Some(source),
            ApiFault::Malformed(source) => Some(source),
            ApiFault::Client(source) => Some(source),
            _ => None,
        }
    }
}
