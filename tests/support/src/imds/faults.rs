//! What goes wrong, where, and how often.

use std::time::Duration;

use super::Times;

/// Which requests something applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route(String);

impl Route {
    /// Requests for a token.
    pub fn token() -> Self {
        Self::path("api/token")
    }

    /// This path below `/latest/`.
    pub fn path(path: &str) -> Self {
        Self(path.to_owned())
    }

    /// The signed identity document.
    pub fn rsa2048() -> Self {
        Self::path("dynamic/instance-identity/rsa2048")
    }

    /// The credentials of the instance identity role.
    pub fn identity_credentials() -> Self {
        Self::path("meta-data/identity-credentials/ec2/security-credentials/ec2-instance")
    }

    fn matches(&self, path: &str) -> bool {
        self.0 == path
    }
}

/// What goes wrong with a request. A token is neither given nor asked for then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// This status, and words of its own.
    Status(u16),
    /// The connection is cut before anything is answered.
    Cut,
    /// Nothing is ever answered. On [`Route::token`]: the hop limit is too low.
    Hang,
    /// It is answered so much later.
    Delay(Duration),
    /// This body, with status 200.
    Body(Vec<u8>),
    /// So many bytes, with status 200 and without a length.
    Huge(usize),
    /// The head comes at once, the body byte by byte.
    Trickle {
        /// Time between two bytes.
        every: Duration,
    },
    /// Status 302 to this base URL, with the request's path.
    Redirect {
        /// Such as `http://127.0.0.1:8080`.
        to: String,
    },
}

impl Fault {
    /// Bytes that are no text.
    pub fn garbage() -> Self {
        Self::Body((0..=u8::MAX).rev().collect())
    }
}

/// All that is to go wrong.
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

    /// What goes wrong with the request for this path: the first rule that still has something to
    /// give.
    pub(super) fn take(&mut self, path: &str) -> Option<Fault> {
        self.requests
            .iter_mut()
            .filter(|(route, ..)| route.matches(path))
            .find_map(|(_, times, fault)| times.take().then(|| fault.clone()))
    }
}
