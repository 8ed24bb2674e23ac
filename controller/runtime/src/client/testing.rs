//! Test API servers and the response filter, which do not need a connection.

use std::time::SystemTime;

use hyper::body::{Body, Bytes};
use hyper::{Request, Response};
use kube::{Client, client};
use tower::BoxError;
use tower::retry::Retry;

use super::response_limits::sieve::{Limits, Sieve};
use super::{Bounded, ClusterAccess, Excess, NamedBy, RetryLists, ServerTime};

/// The error for a response that is too long.
pub fn too_long() -> BoxError {
    Excess::Length(1).into()
}

/// The bytes that reach a parser from these chunks. The chunks are one text or, with `lines`, one text per line.
pub fn sieved<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, lines: bool) -> Vec<u8> {
    let mut sieve = Sieve::new(Limits {
        lines,
        ..Limits::ANY
    });
    let pieces = pieces.into_iter();
    let passed = pieces.map_while(|piece| sieve.pass(Bytes::copy_from_slice(piece)).ok());
    passed.flatten().collect()
}

impl ClusterAccess {
    /// An in-memory API server. Its calls and responses have the limits of an operator's API server.
    pub fn in_memory<F, B>(
        answer: impl Fn(Request<client::Body>) -> F + Clone + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let client = || {
            let answer = answer.clone();
            let service = tower::service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, BoxError>(answer.await) }
            });
            let bounded = Bounded::new(service, NamedBy::Operator, "");
            let policy = RetryLists::default();
            Client::new(Retry::new(policy, bounded), "default")
        };
        Self {
            client: client(),
            lease_client: Some(client()),
            server: "https://203.0.113.7:6443/".to_owned(),
            ca_certificates: Vec::new(),
            server_time: ServerTime::default(),
        }
    }

    /// Sets the time that the API server reported last.
    #[must_use]
    pub fn with_server_time(self, date: SystemTime) -> Self {
        let server_time = ServerTime::at(date);
        Self {
            server_time,
            ..self
        }
    }
}
