//! Errors of the instance metadata service.

use std::io;
use std::time::Duration;

/// The metadata service did not give the requested answer. Errors contain no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImdsError {
    /// No endpoint can be reached.
    #[error("cannot reach the instance metadata service: {tried}")]
    Unreachable {
        /// Each endpoint with its error.
        tried: String,
    },
    /// The service accepts the connection but does not answer the request for a token.
    #[error(
        "the instance metadata service at {endpoint} takes the request for a token and does not \
         answer within {waited:.1?}, as where its answer needs more hops than the instance's hop \
         limit allows"
    )]
    TokenTimedOut {
        /// The endpoint.
        endpoint: String,
        /// The time of the wait.
        waited: Duration,
    },
    /// The service accepts the connection but gives no answer, or only a part of one.
    #[error(
        "the instance metadata service at {endpoint} did not answer {path} within {waited:.1?}"
    )]
    TimedOut {
        /// The endpoint.
        endpoint: String,
        /// The requested path.
        path: String,
        /// The time of the wait.
        waited: Duration,
    },
    /// The status is another one than success.
    #[error("the instance metadata service {}", refusal(path, *status))]
    Status {
        /// The requested path.
        path: String,
        /// The status.
        status: u16,
    },
    /// The answer is not HTTP, or is truncated.
    #[error("what answers at {endpoint} for {path} does not speak HTTP to its end: {why}")]
    NotHttp {
        /// The endpoint.
        endpoint: String,
        /// The requested path.
        path: String,
        /// The error of the HTTP library.
        why: String,
    },
    /// The answer exceeds the limit.
    #[error("the instance metadata service answers {path} with more than {limit} bytes")]
    TooLarge {
        /// The requested path.
        path: String,
        /// The limit.
        limit: u64,
    },
    /// The answer to the request for a token contains no token.
    #[error("what answers at {endpoint} gives no token of the instance metadata service")]
    NoToken {
        /// The endpoint.
        endpoint: String,
    },
    /// The answer is not UTF-8.
    #[error("the instance metadata service answers {path} with what is no text")]
    NotText {
        /// The requested path.
        path: String,
    },
    /// The client could not be built, and nothing was sent.
    #[error("cannot set up a client for the instance metadata service")]
    Client {
        /// The reason.
        source: io::Error,
    },
}

impl ImdsError {
    /// What to do about the error.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => {
                "see that this is an EC2 instance, that its metadata endpoint is enabled \
                 (HttpEndpoint), and that no firewall keeps root from it"
            }
            Self::TokenTimedOut { .. } => {
                "run the plugin on the host and not in a container's network; otherwise raise the \
                 instance's HttpPutResponseHopLimit"
            }
            Self::TimedOut { .. } | Self::Status { status: 401, .. } => {
                "nothing, if it passes: the next run asks again; otherwise see what stands between \
                 this host and the metadata service"
            }
            Self::Status { status: 403, .. } => {
                "enable the instance's metadata endpoint (HttpEndpoint), and see that no proxy \
                 stands before it"
            }
            Self::Status { .. }
            | Self::NotHttp { .. }
            | Self::TooLarge { .. }
            | Self::NoToken { .. }
            | Self::NotText { .. } => {
                "see what answers in the place of the instance metadata service: a proxy, an \
                 emulator, or what aws.metadataEndpoint in the settings names"
            }
            Self::Client { .. } => "free some memory",
        }
    }

    /// Whether the same request may succeed in a moment.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::TokenTimedOut { .. }
            | Self::TimedOut { .. }
            | Self::NotHttp { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            Self::TooLarge { .. }
            | Self::NoToken { .. }
            | Self::NotText { .. }
            | Self::Client { .. } => false,
        }
    }
}

fn refusal(path: &str, status: u16) -> String {
    match status {
        401 => format!("does not accept its own token (401 for {path})"),
        403 => format!("refuses {path} (403)"),
        404 => format!("has no {path} (404)"),
        _ => format!("answers {path} with status {status}"),
    }
}
