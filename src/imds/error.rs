//! Why the metadata service does not say who this instance is.

use std::io;
use std::time::Duration;

/// The metadata service does not say what it is asked. Contents are never repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImdsError {
    /// No connection.
    #[error("cannot reach the instance metadata service: {tried}")]
    Unreachable {
        /// Each endpoint, and why.
        tried: String,
    },
    /// A connection, and no answer to the request for a token.
    #[error(
        "the instance metadata service at {endpoint} takes the request for a token and does not \
         answer within {waited:.1?}, as where its answer needs more hops than the instance's hop \
         limit allows"
    )]
    TokenTimedOut {
        /// Where it is.
        endpoint: String,
        /// How long we waited.
        waited: Duration,
    },
    /// A connection, and no answer, or one that does not end.
    #[error(
        "the instance metadata service at {endpoint} did not answer {path} within {waited:.1?}"
    )]
    TimedOut {
        /// Where it is.
        endpoint: String,
        /// What was asked for.
        path: String,
        /// How long we waited.
        waited: Duration,
    },
    /// 401.
    #[error("the instance metadata service does not accept its own token (401 for {path})")]
    Unauthorized {
        /// What was asked for.
        path: String,
    },
    /// 403.
    #[error("the instance metadata service refuses {path} (403)")]
    Forbidden {
        /// What was asked for.
        path: String,
    },
    /// 404.
    #[error("the instance metadata service has no {path} (404)")]
    NotFound {
        /// What was asked for.
        path: String,
    },
    /// Another answer that is no success, a redirect among them.
    #[error("the instance metadata service answers {path} with status {status}")]
    Status {
        /// What was asked for.
        path: String,
        /// The status.
        status: u16,
    },
    /// The answer is none of HTTP, or is cut off.
    #[error("what answers at {endpoint} for {path} does not speak HTTP to its end: {why}")]
    NotHttp {
        /// Where it is.
        endpoint: String,
        /// What was asked for.
        path: String,
        /// What the HTTP library says.
        why: String,
    },
    /// A larger answer than the service has.
    #[error("the instance metadata service answers {path} with more than {limit} bytes")]
    TooLarge {
        /// What was asked for.
        path: String,
        /// The limit.
        limit: u64,
    },
    /// The answer to the request for a token is no token.
    #[error("what answers at {endpoint} gives no token of the instance metadata service")]
    NoToken {
        /// Where it is.
        endpoint: String,
    },
    /// Not UTF-8.
    #[error("the instance metadata service answers {path} with what is no text")]
    NotText {
        /// What was asked for.
        path: String,
    },
    /// Nothing was asked.
    #[error("cannot set up a client for the instance metadata service")]
    Client {
        /// The reason.
        source: io::Error,
    },
}

impl ImdsError {
    /// What to do about it.
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
            Self::TimedOut { .. } | Self::Unauthorized { .. } => {
                "nothing, if it passes: the next run asks again; otherwise see what stands between \
                 this host and the metadata service"
            }
            Self::Forbidden { .. } => {
                "enable the instance's metadata endpoint (HttpEndpoint), and see that no proxy \
                 stands before it"
            }
            Self::NotFound { .. }
            | Self::Status { .. }
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

    /// Whether the same question may be answered in a moment.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::TokenTimedOut { .. }
            | Self::TimedOut { .. }
            | Self::NotHttp { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::TooLarge { .. }
            | Self::NoToken { .. }
            | Self::NotText { .. }
            | Self::Client { .. } => false,
        }
    }
}
