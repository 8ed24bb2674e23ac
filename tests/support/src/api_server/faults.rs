//! Faults: their kinds, the requests to which they apply, and the number of times that they occur.

use std::time::Duration;

use serde_json::Value;

use super::resource::{REQUESTS, Target, Verb};

/// The requests to which a fault or a gate applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    verb: Option<Verb>,
    plural: Option<String>,
    subresource: Option<String>,
    name: Option<String>,
}

impl Route {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches every request with this verb.
    pub fn verb(verb: Verb) -> Self {
        Self {
            verb: Some(verb),
            ..Self::default()
        }
    }

    /// Matches requests with this verb for this resource (plural, such as `nodes`), without subresources.
    pub fn new(verb: Verb, plural: &str) -> Self {
        Self {
            verb: Some(verb),
            plural: Some(plural.into()),
            subresource: Some(String::new()),
            name: None,
        }
    }

    /// Matches the creation of a certificate request.
    pub fn create() -> Self {
        Self::new(Verb::Create, REQUESTS.plural)
    }

    /// Matches a read of one certificate request.
    pub fn get() -> Self {
        Self::new(Verb::Get, REQUESTS.plural)
    }

    /// Matches a list of certificate requests.
    pub fn list() -> Self {
        Self::new(Verb::List, REQUESTS.plural)
    }

    /// Matches a watch of certificate requests.
    pub fn watch() -> Self {
        Self::new(Verb::Watch, REQUESTS.plural)
    }

    /// Matches any write to a request's `/approval`.
    pub fn approval() -> Self {
        Self::part("approval")
    }

    /// Matches any write to a request's `/status`.
    pub fn status() -> Self {
        Self::part("status")
    }

    /// Restricts the route to the object with this name. Does not match creations, because their path does not contain
    /// a name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    fn part(subresource: &str) -> Self {
        Self {
            verb: None,
            plural: Some(REQUESTS.plural.into()),
            subresource: Some(subresource.into()),
            name: None,
        }
    }

    pub(super) fn matches(&self, target: &Target) -> bool {
        let same = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        self.verb.is_none_or(|verb| verb == target.verb)
            && same(&self.plural, &target.plural)
            && same(&self.subresource, &target.subresource)
            && same(&self.name, &target.name)
    }
}

/// The matching requests that get the fault: the first `skip` matches have no fault, and the next `count` matches have
/// the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    skip: usize,
    count: usize,
}

impl Times {
    /// The fault applies to the next match.
    pub fn once() -> Self {
        Self::first(1)
    }

    /// The fault applies to the next `count` matches.
    pub fn first(count: usize) -> Self {
        Self { skip: 0, count }
    }

    /// The fault applies to one match, after `skip` matches.
    pub fn after(skip: usize) -> Self {
        Self { skip, count: 1 }
    }

    /// The fault applies to all matches.
    pub fn always() -> Self {
        Self::first(usize::MAX)
    }

    pub(crate) fn take(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let hit = self.count > 0;
        if hit && self.count < usize::MAX {
            self.count -= 1;
        }
        hit
    }
}

/// A fault in a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// A `Status` with this code is returned, with `Retry-After` if given. Nothing is stored.
    Status {
        /// The HTTP status.
        code: u16,
        /// Seconds for `Retry-After`.
        retry_after: Option<u32>,
    },
    /// The connection is closed before the request is executed.
    Cut,
    /// The request is executed and stored. The connection is then closed without a response.
    LoseAnswer,
    /// The request is neither executed nor answered.
    Hang,
    /// The request is executed and stored, but never answered.
    HangAfterStore,
    /// The response arrives byte by byte, starting with its first header.
    TrickleHead {
        /// The time between two bytes.
        every: Duration,
    },
    /// The head arrives immediately, but the body arrives byte by byte.
    TrickleBody {
        /// The time between two bytes.
        every: Duration,
    },
    /// Status 200 and a JSON document with this number of bytes are returned, in one line, without `Content-Length`.
    HugeBody {
        /// The size in bytes.
        size: usize,
    },
    /// Status 302 to this base URL is returned, with the request's path.
    Redirect {
        /// The base URL, such as `https://127.0.0.1:6443`.
        to: String,
    },
    /// The `Date` header of the response is wrong by this number of seconds.
    DateSkew {
        /// The number of seconds. A negative number is in the past.
        seconds: i64,
    },
    /// The server returns this response to any kind of request, and does not store anything.
    Answer {
        /// The HTTP status.
        code: u16,
        /// The content type.
        content_type: String,
        /// The body.
        body: Vec<u8>,
    },
    /// Before a create, another client stores an object with the same name. The spec of that object is the spec of the
    /// new object, merged with this patch.
    Squat {
        /// A JSON merge patch for the spec.
        spec: Value,
    },
    /// The response contains the object with this patch merged into it. The stored object does not change.
    Merge {
        /// A JSON merge patch for the response.
        patch: Value,
    },
    /// A watch is cut off after this number of events.
    WatchCut {
        /// The number of events.
        after: usize,
    },
    /// A watch ends cleanly after this number of events.
    WatchEnd {
        /// The number of events.
        after: usize,
    },
    /// A watch sends the `ERROR` event for an expired `resourceVersion`, and ends.
    WatchGone,
    /// A watch sends a line that is not JSON, and ends.
    WatchGarbage,
    /// A watch sends one bookmark and nothing after it.
    WatchBookmarkOnly,
    /// A watch sends new objects constantly, as fast as the client reads them.
    WatchFlood,
}

impl Fault {
    /// Creates the fault that returns a `Status` with this code.
    pub fn status(code: u16) -> Self {
        Self::Status {
            code,
            retry_after: None,
        }
    }

    /// Creates the fault that returns status 429 with `Retry-After`.
    pub fn too_many_requests(retry_after: u32) -> Self {
        Self::Status {
            code: 429,
            retry_after: Some(retry_after),
        }
    }

    /// Creates the fault that returns a load balancer's response: status 200 and HTML.
    pub fn not_json() -> Self {
        Self::Answer {
            code: 200,
            content_type: "text/html".into(),
            body: b"<html><body>It works!</body></html>".to_vec(),
        }
    }
}

/// A fault in a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFault {
    /// The connection is accepted, but the server never reads from it.
    SilentAtTcp,
    /// The client's first TLS message is read, but never answered.
    SilentAtTls,
    /// The connection is closed immediately.
    Close,
    /// The server's certificate is from a CA that no client trusts.
    AnotherAuthority,
    /// The server's certificate is only for [`super::OTHER_NAME`].
    AnotherName,
    /// The server's certificate expired an hour ago.
    ExpiredCertificate,
    /// The server's certificate becomes valid in an hour.
    NotYetValidCertificate,
    /// The server supports HTTP/1.1 but not HTTP/2, like some proxies.
    OnlyHttp1,
    /// The response to the client's first TLS message is not TLS.
    NotTls,
    /// The response to the client's first TLS message is a fatal alert, as from a kube-apiserver that starts.
    TlsAlert,
    /// The server's data after the handshake is not HTTP.
    NotHttp,
    /// After the handshake, one byte arrives per second.
    Slow,
}

/// All faults that have not occurred yet.
#[derive(Debug, Default)]
pub(super) struct Faults {
    requests: Vec<(Route, Times, Fault)>,
    connections: Vec<(Times, ConnectionFault)>,
}

impl Faults {
    pub(super) fn add(&mut self, route: Route, times: Times, fault: Fault) {
        self.requests.push((route, times, fault));
    }

    pub(super) fn add_connection(&mut self, times: Times, fault: ConnectionFault) {
        self.connections.push((times, fault));
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The fault for this request, from the first matching rule that still applies.
    pub(super) fn take(&mut self, target: &Target) -> Option<Fault> {
        self.requests
            .iter_mut()
            .filter(|(route, ..)| route.matches(target))
            .find_map(|(_, times, fault)| times.take().then(|| fault.clone()))
    }

    /// The fault for the next connection.
    pub(super) fn take_connection(&mut self) -> Option<ConnectionFault> {
        self.connections
            .iter_mut()
            .find_map(|(times, fault)| times.take().then_some(*fault))
    }
}
