//! Errors of the instance metadata service.

use crate::failure::{Code, Failure};

/// The metadata service did not give the requested answer. Errors contain no answer.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(super) struct ImdsError {
    pub(super) kind: ErrorKind,
    pub(super) what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorKind {
    /// No endpoint can be reached. The text lists them with their errors.
    Unreachable,
    /// The service accepts the connection but does not answer the request for a token.
    TokenTimedOut,
    /// The service accepts the connection but gives no answer, or only a part of one.
    TimedOut,
    /// The status is another one than success.
    Status(u16),
    /// The answer is not HTTP, or is truncated.
    NotHttp,
    /// The answer is too long, or is not what was asked for.
    Invalid,
    /// The client could not be built, and nothing was sent.
    Client,
}

impl ErrorKind {
    /// What to do about the error.
    fn remedy(self) -> &'static str {
        match self {
            Self::Unreachable => {
                "see that this is an EC2 instance, that its metadata endpoint is enabled \
                 (HttpEndpoint), and that no firewall keeps root from it"
            }
            Self::TokenTimedOut => {
                "run the plugin on the host and not in a container's network; otherwise raise the \
                 instance's HttpPutResponseHopLimit"
            }
            Self::TimedOut | Self::Status(401) => {
                "nothing, if it passes: the next run asks again; otherwise see what stands between \
                 this host and the metadata service"
            }
            Self::Status(403) => {
                "enable the instance's metadata endpoint (HttpEndpoint), and see that no proxy \
                 stands before it"
            }
            Self::Status(_) | Self::NotHttp | Self::Invalid => {
                "see what answers in the place of the instance metadata service: a proxy, an \
                 emulator, or what aws.metadataEndpoint in the settings names"
            }
            Self::Client => "free some memory",
        }
    }

    /// Whether another attempt may succeed.
    pub(super) fn may_pass(self) -> bool {
        match self {
            Self::Unreachable | Self::TokenTimedOut | Self::TimedOut | Self::NotHttp => true,
            Self::Status(status) => status == 429 || status >= 500,
            Self::Invalid | Self::Client => false,
        }
    }
}

impl ImdsError {
    /// An error with its text.
    pub(super) fn new(kind: ErrorKind, what: String) -> Self {
        Self { kind, what }
    }

    /// The error of a status other than success.
    pub(super) fn of_status(status: u16, path: &str) -> Self {
        let what = match status {
            401 => format!("does not accept its own token (401 for {path})"),
            403 => format!("refuses {path} (403)"),
            404 => format!("has no {path} (404)"),
            _ => format!("answers {path} with status {status}"),
        };
        let what = format!("the instance metadata service {what}");
        Self::new(ErrorKind::Status(status), what)
    }
}

impl From<ImdsError> for Failure {
    fn from(error: ImdsError) -> Self {
        let failure = Self::new(Code::EvidenceUnavailable, error.what, error.kind.remedy());
        if error.kind == ErrorKind::Unreachable {
            failure.within("cannot reach the instance metadata service")
        } else {
            failure
        }
    }
}
