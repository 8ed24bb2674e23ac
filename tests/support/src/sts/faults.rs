//! Faults in calls and in connections.

use std::time::Duration;

use super::Principal;
pub use crate::api_server::Times;

/// A fault in a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The response is an error in AWS's format.
    Error {
        /// The HTTP status.
        status: u16,
        /// The error code.
        code: String,
        /// The error message.
        message: String,
    },
    /// Any call gets this response.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The content type.
        content_type: String,
        /// The body.
        body: Vec<u8>,
    },
    /// The response is status 307 with this URL.
    Redirect {
        /// The URL.
        to: String,
    },
    /// The call is verified, but the response does not contain a result.
    NoResult,
    /// The call is verified. The response also contains this principal, as the first result.
    TwoResults {
        /// The other principal.
        other: Principal,
    },
    /// The response is this number of bytes long.
    HugeBody {
        /// The number of bytes.
        size: usize,
    },
    /// The response body arrives byte by byte.
    Trickle {
        /// The time between two bytes.
        every: Duration,
    },
    /// The call is never answered.
    Hang,
    /// The connection is closed without a response.
    Cut,
}

impl Fault {
    /// Status 400: the caller's account has made too many calls.
    pub fn throttling() -> Self {
        Self::error(400, "Throttling", "Rate exceeded")
    }

    /// Status 429, as from a load balancer in front of the service.
    pub fn too_many_requests() -> Self {
        Self::error(429, "TooManyRequestsException", "Too Many Requests")
    }

    /// Status 500.
    pub fn internal_failure() -> Self {
        Self::error(
            500,
            "InternalFailure",
            "The request processing has failed because of an unknown error, exception or failure.",
        )
    }

    /// Status 503.
    pub fn service_unavailable() -> Self {
        Self::error(
            503,
            "ServiceUnavailable",
            "Service is unable to handle request.",
        )
    }

    /// An error in AWS's format.
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        Self::Error {
            status,
            code: code.into(),
            message: message.into(),
        }
    }

    /// Status 200, with this body as JSON.
    pub fn body(body: impl Into<Vec<u8>>) -> Self {
        Self::Answer {
            status: 200,
            content_type: "application/json".into(),
            body: body.into(),
        }
    }
}

/// A fault in a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFault {
    /// The connection is accepted, but the server never reads from it.
    Silent,
    /// The connection is closed immediately.
    Close,
    /// The certificate is from a CA that no client trusts.
    AnotherAuthority,
    /// The certificate is for another host.
    AnotherName,
}

/// All faults that have not occurred yet.
#[derive(Debug, Default)]
pub(super) struct Faults {
    calls: Vec<(Times, Fault)>,
    connections: Vec<(Times, ConnectionFault)>,
}

impl Faults {
    pub(super) fn add(&mut self, times: Times, fault: Fault) {
        self.calls.push((times, fault));
    }

    pub(super) fn add_connection(&mut self, times: Times, fault: ConnectionFault) {
        self.connections.push((times, fault));
    }

    pub(super) fn take(&mut self) -> Option<Fault> {
        let mut calls = self.calls.iter_mut();
        calls.find_map(|(times, fault)| times.take().then(|| fault.clone()))
    }

    pub(super) fn take_connection(&mut self) -> Option<ConnectionFault> {
        let mut connections = self.connections.iter_mut();
        connections.find_map(|(times, fault)| times.take().then_some(*fault))
    }
}
