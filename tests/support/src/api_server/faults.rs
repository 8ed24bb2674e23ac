//! What goes wrong, where, and how often.

use std::time::Duration;

use serde_json::Value;

use super::resource::{REQUESTS, Target, Verb};

/// Which requests something applies to.
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

    /// Every request with this verb.
    pub fn verb(verb: Verb) -> Self {
        Self {
            verb: Some(verb),
            ..Self::default()
        }
    }

    /// This verb on this resource (plural, such as `nodes`), subresources not included.
    pub fn new(verb: Verb, plural: &str) -> Self {
        Self {
            verb: Some(verb),
            plural: Some(plural.into()),
            subresource: Some(String::new()),
            name: None,
        }
    }

    /// Creation of a certificate request.
    pub fn create() -> Self {
        Self::new(Verb::Create, REQUESTS.plural)
    }

    /// Reading of one certificate request.
    pub fn get() -> Self {
        Self::new(Verb::Get, REQUESTS.plural)
    }

    /// Listing of certificate requests.
    pub fn list() -> Self {
        Self::new(Verb::List, REQUESTS.plural)
    }

    /// Watching of certificate requests.
    pub fn watch() -> Self {
        Self::new(Verb::Watch, REQUESTS.plural)
    }

    /// Any write to a request's `/approval`.
    pub fn approval() -> Self {
        Self::part("approval")
    }

    /// Any write to a request's `/status`.
    pub fn status() -> Self {
        Self::part("status")
    }

    /// The same, for the object of this name only (not for creations, whose path has no name).
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

/// How often: the first `skip` matches are spared, the next `count` are hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    skip: usize,
    count: usize,
}

impl Times {
    /// The next one.
    pub fn once() -> Self {
        Self::first(1)
    }

    /// The next `count`.
    pub fn first(count: usize) -> Self {
        Self { skip: 0, count }
    }

    /// The one after the next `skip`.
    pub fn after(skip: usize) -> Self {
        Self { skip, count: 1 }
    }

    /// All.
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

/// What goes wrong with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// A `Status` of this code, with `Retry-After` where given; nothing is stored.
    Status {
        /// The HTTP status.
        code: u16,
        /// Seconds for `Retry-After`.
        retry_after: Option<u32>,
    },
    /// The connection is cut before anything is done.
    Cut,
    /// It is done and stored; the connection is cut instead of an answer.
    LoseAnswer,
    /// Nothing is done, nothing is ever answered.
    Hang,
    /// It is done and stored; nothing is ever answered.
    HangAfterStore,
    /// The answer comes byte by byte from its first header on.
    TrickleHead {
        /// Time between two bytes.
        every: Duration,
    },
    /// The head comes at once, the body byte by byte.
    TrickleBody {
        /// Time between two bytes.
        every: Duration,
    },
    /// Status 200 and a JSON document of this many bytes, in one line, without a length.
    HugeBody {
        /// Bytes.
        size: usize,
    },
    /// Status 302 to this base URL, with the request's path.
    Redirect {
        /// Such as `https://127.0.0.1:6443`.
        to: String,
    },
    /// The `Date` of the answer is so many seconds off.
    DateSkew {
        /// Seconds, negative for the past.
        seconds: i64,
    },
    /// This answer, whatever was asked; nothing is stored.
    Answer {
        /// The HTTP status.
        code: u16,
        /// The content type.
        content_type: String,
        /// The body.
        body: Vec<u8>,
    },
    /// Before a create: somebody else stores an object of that name whose spec is the new one's
    /// with this merged into it.
    Squat {
        /// A JSON merge patch for the spec.
        spec: Value,
    },
    /// The answered object (or the stored one, whatever is answered) with this merged into it.
    Merge {
        /// A JSON merge patch for the answer.
        patch: Value,
    },
    /// A watch is cut without an end after so many events.
    WatchCut {
        /// Events.
        after: usize,
    },
    /// A watch ends cleanly after so many events.
    WatchEnd {
        /// Events.
        after: usize,
    },
    /// A watch answers with the `ERROR` event of a version that is gone, and ends.
    WatchGone,
    /// A watch answers with a line that is no JSON, and ends.
    WatchGarbage,
    /// A watch sends one bookmark and then nothing.
    WatchBookmarkOnly,
    /// A watch sends new objects without end, as fast as they are read.
    WatchFlood,
}

impl Fault {
    /// A `Status` of this code.
    pub fn status(code: u16) -> Self {
        Self::Status {
            code,
            retry_after: None,
        }
    }

    /// 429 with `Retry-After`.
    pub fn too_many_requests(retry_after: u32) -> Self {
        Self::Status {
            code: 429,
            retry_after: Some(retry_after),
        }
    }

    /// The answer of a load balancer: 200 and HTML.
    pub fn not_json() -> Self {
        Self::Answer {
            code: 200,
            content_type: "text/html".into(),
            body: b"<html><body>It works!</body></html>".to_vec(),
        }
    }
}

/// What goes wrong with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFault {
    /// It is accepted and never read from.
    SilentAtTcp,
    /// The client's first TLS message is read and never answered.
    SilentAtTls,
    /// It is closed at once.
    Close,
    /// The server's certificate comes from an authority that nobody trusts.
    AnotherAuthority,
    /// The server's certificate is for [`super::OTHER_NAME`] alone.
    AnotherName,
    /// The server's certificate was over an hour ago.
    ExpiredCertificate,
    /// The server speaks HTTP/1.1 and not HTTP/2, as some proxies do.
    OnlyHttp1,
    /// The client's first TLS message is answered with what is no TLS.
    NotTls,
    /// After the handshake comes what is no HTTP.
    NotHttp,
    /// After the handshake comes a byte a second.
    Slow,
}

/// All that is to go wrong.
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

    /// What goes wrong with this request: the first rule that still has something to give.
    pub(super) fn take(&mut self, target: &Target) -> Option<Fault> {
        self.requests
            .iter_mut()
            .filter(|(route, ..)| route.matches(target))
            .find_map(|(_, times, fault)| times.take().then(|| fault.clone()))
    }

    /// What goes wrong with the next connection.
    pub(super) fn take_connection(&mut self) -> Option<ConnectionFault> {
        self.connections
            .iter_mut()
            .find_map(|(times, fault)| times.take().then_some(*fault))
    }
}
