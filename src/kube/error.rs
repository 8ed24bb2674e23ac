//! Errors between a node and its API server.

use std::error::Error;

use kubelet_attestation::errors::error_chain;

/// A call to the API server failed. `Display` names the server and the causes.
///
/// It contains no credential, because neither the request nor its headers are repeated.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct ApiError {
    /// What failed.
    pub(crate) kind: ApiErrorKind,
    what: String,
}

/// What failed in a call to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiErrorKind {
    /// There is no connection, or it broke.
    Unreachable,
    /// TLS failed.
    Tls,
    /// The deadline passed before the answer was complete.
    TimedOut,
    /// 401: the credential is missing, expired or unknown.
    Unauthorized,
    /// 403: the credential is valid, but not authorized for the request.
    Forbidden,
    /// Another 4xx: the API server refuses the request itself.
    Refused,
    /// An object with the request's name exists, and it asks for something else.
    NameConflict,
    /// 429, even after the pauses that the server asked for.
    TooManyRequests,
    /// 5xx, even after the pauses that the server asked for.
    Server,
    /// The answer is too long, not the requested object, or has a status that no API server
    /// returns.
    NotAnApiServer,
    /// The clocks are too far apart.
    ClockSkew,
    /// A field of the kubeconfig cannot be used.
    Unusable,
    /// The client could not be started.
    Client,
}

impl ApiErrorKind {
    /// An error with its text.
    pub(super) fn error(self, what: String) -> ApiError {
        ApiError { kind: self, what }
    }
}

impl ApiError {
    /// The error of a client that could not be started.
    pub(super) fn of_client(server: &str, error: &dyn Error) -> Self {
        let why = error_chain(error);
        ApiErrorKind::Client.error(format!("cannot start the client for {server}: {why}"))
    }

    /// The error of a request whose name another object has.
    pub(crate) fn name_conflict(name: &str) -> Self {
        ApiErrorKind::NameConflict.error(format!("the request {name} exists and is not ours"))
    }

    /// Whether another attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        matches!(
            self.kind,
            ApiErrorKind::Unreachable
                | ApiErrorKind::TimedOut
                | ApiErrorKind::TooManyRequests
                | ApiErrorKind::Server
        )
    }

    /// Whether the API server does not accept the requester.
    pub(crate) fn is_about_the_requester(&self) -> bool {
        matches!(
            self.kind,
            ApiErrorKind::Unauthorized | ApiErrorKind::Forbidden
        )
    }
}
