//! Faults: their kinds, the requests to which they apply, and the number of times that they occur.

use std::time::Duration;

use super::Times;

/// The requests to which a fault applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route(String);

impl Route {
    /// Requests for a token.
    pub fn token() -> Self {
        Self::path("api/token")
    }

    /// Requests for this path below `/latest/`.
    pub fn path(path: &str) -> Self {
        Self(path.to_owned())
    }

    /// Requests for the signed identity document.
    pub fn rsa2048() -> Self {
        Self::path("dynamic/instance-identity/rsa2048")
    }

    /// Requests for the credentials of the instance identity role.
    pub fn identity_credentials() -> Self {
        Self::path("meta-data/identity-credentials/ec2/security-credentials/ec2-instance")
    }

    fn matches(&self, path: &str) -> bool {
        self.0 == path
    }
}

/// A fault in a request. Except with [`Fault::Delay`] and [`Fault::Trickle`], the service neither checks nor issues a
/// token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The response has this status, and the text of the error page for this status.
    Status(u16),
    /// The connection is closed before any response.
    Cut,
    /// The request is never answered. For [`Route::token`], this simulates a hop limit that is too low.
    Hang,
    /// The response is delayed by this time.
    Delay(Duration),
    /// The response has this body and status 200.
    Body(Vec<u8>),
    /// The response has this number of bytes, status 200, and no `Content-Length`.
    Huge(usize),
    /// The head arrives immediately, but the body arrives byte by byte.
    Trickle {
        /// The time between two bytes.
        every: Duration,
    },
    /// Status 302 to this base URL is returned, with the request's path.
    Redirect {
        /// The base URL, such as `http://127.0.0.1:8080`.
        to: String,
    },
}

impl Fault {
    /// Creates the fault that returns a body that is not text.
    pub fn garbage() -> Self {
        Self::Body((0..=u8::MAX).rev().collect())
    }
}

/// All faults that have not occurred yet.
#[derive(Debug, Default)]
pub(super) struct Faults {
    requests: Vec<(Route, Times, Fault)>,
}

impl Faults {
    pub(super) fn add(&mut self, route: Route, times: Times, fault: Fault) {
        self.requests.push((route, times, fault));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The fault for the request for this path, from the first matching rule that still applies.
    pub(super) fn take(&mut self, path: &str) -> Option<Fault> {
        self.requests
            .iter_mut()
            .filter(|(route, ..)| route.matches(path))
            .find_map(|(_, times, fault)| times.take().then(|| fault.clone()))
    }
}
