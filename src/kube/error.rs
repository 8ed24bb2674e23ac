//! Errors in calls from a node to its API server.

use std::time::Duration;

use reqwest::StatusCode;

use crate::failure::{Code, Failure};

const CHECK_NETWORK: &str = "check that the API server runs and is reachable from this machine";
const CHECK_PROXY: &str = "check that the proxy runs, accepts this machine and reaches the API \
                           server; or add the API server to NO_PROXY, or remove proxy-url from \
                           the kubeconfig";
const CHECK_SERVER: &str = "check that the server in the kubeconfig is an API server, and that no \
                            proxy is between this machine and the API server";

/// Whether another attempt can get a different status: the server, or a load balancer in front of it, is overloaded or
/// restarting. Every other status is final.
pub(super) fn is_retried(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
}

/// A failed call to the API server. `Display` contains the server and the causes.
///
/// The error never contains a credential, because it does not repeat the request or its headers.
#[derive(Debug, thiserror::Error)]
#[error("{failure}")]
pub struct ApiError {
    pub(crate) kind: ApiErrorKind,
    pub(super) failure: Failure,
    /// The pause that the server requests before another attempt.
    pub(super) retry_after: Option<Duration>,
}

/// The reason why a call to the API server failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiErrorKind {
    /// The server cannot be reached, does not respond in time, or is overloaded or not available. Another attempt can
    /// succeed.
    Unavailable,
    /// 401: the credential is missing, expired or unknown.
    Unauthorized,
    /// 403: the credential is valid, but not authorized for the request.
    Forbidden,
    /// Another 4xx status: the API server rejects the request itself.
    Refused,
    /// An object with the request's name exists, but with different contents.
    NameConflict,
    /// Any other error. Another attempt would also fail.
    Other,
}

impl ApiError {
    pub(super) fn new(kind: ApiErrorKind, code: Code, what: String, remedy: &str) -> Self {
        let failure = Failure::new(code, what, remedy);
        Self {
            kind,
            failure,
            retry_after: None,
        }
    }

    /// An error that another attempt cannot avoid.
    pub(super) fn other(code: Code, what: String, remedy: &str) -> Self {
        Self::new(ApiErrorKind::Other, code, what, remedy)
    }

    /// The error for a server that does not respond.
    pub(super) fn unavailable(what: String) -> Self {
        Self::new(
            ApiErrorKind::Unavailable,
            Code::Unreachable,
            what,
            CHECK_NETWORK,
        )
    }

    /// The error for a proxy that does not connect to the server. The error can be temporary, unless the proxy refuses
    /// the connection.
    pub(super) fn of_proxy(what: String, may_pass: bool) -> Self {
        let kind = if may_pass {
            ApiErrorKind::Unavailable
        } else {
            ApiErrorKind::Other
        };
        Self::new(kind, Code::Unreachable, what, CHECK_PROXY)
    }

    /// Returns the error for a response that is too long, that is not the requested object, or whose status no API
    /// server returns.
    pub(super) fn not_an_api_server(what: String) -> Self {
        Self::other(Code::Unreachable, what, CHECK_SERVER)
    }

    /// The error for a request whose name belongs to a different object.
    pub(crate) fn name_conflict(name: &str) -> Self {
        Self::new(
            ApiErrorKind::NameConflict,
            Code::Refused,
            format!("the request {name} exists, but this machine did not create it"),
            "check who created the request; the next run uses a different name",
        )
    }

    /// Whether another attempt can succeed.
    pub(super) fn may_pass(&self) -> bool {
        self.kind == ApiErrorKind::Unavailable
    }

    /// Whether the API server rejects the requester.
    pub(crate) fn is_about_the_requester(&self) -> bool {
        matches!(
            self.kind,
            ApiErrorKind::Unauthorized | ApiErrorKind::Forbidden
        )
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        error.failure
    }
}
