//! Serves `/metrics`, `/healthz` and `/readyz` over HTTP without TLS. The pages are read-only and contain no secrets.
//!
//! # Guarantees
//!
//! - A client cannot hold resources, because a connection serves one request within a few seconds. If there are too
//!   many connections, the oldest connections are closed. Request bodies are not read.
//! - Metrics are encoded at most once per second. All requests within this second get the same bytes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use node_attestation_core::unshared::Unshared;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::{Format, Metrics, NotWell};

/// The limit on connections, which exceeds the number that probes and Prometheus need. A new connection replaces the
/// oldest connection, so idle connections do not block others.
const MAX_CONNECTIONS: usize = 64;

/// The deadline for reading a request's header.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);

/// The deadline for a connection. Prometheus cancels a scrape after 10 seconds.
const DEADLINE: Duration = Duration::from_secs(15);

/// The maximum length of a request's header, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// The maximum number of header fields.
const MAX_FIELDS: usize = 64;

/// The time for which encoded metrics are reused.
const FRESH: Duration = Duration::from_secs(1);

/// The time to wait after a connection could not be accepted, for example because of too many open files.
const PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The pages that a server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedPaths {
    /// `/metrics`.
    Metrics,
    /// `/healthz` and `/readyz`.
    Health,
}

/// Serves these pages. Never returns.
pub async fn serve(listener: TcpListener, pages: ServedPaths, metrics: Metrics) {
    let site = Arc::new(Site {
        pages,
        metrics,
        scraped: Unshared::default(),
    });
    let mut connections = JoinSet::new();
    let mut oldest: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        oldest.retain(|connection| !connection.is_finished());
        let Ok((stream, _)) = accepted else {
            sleep(PAUSE).await;
            continue;
        };
        if oldest.len() >= MAX_CONNECTIONS
            && let Some(connection) = oldest.pop_front()
        {
            connection.abort();
        }
        oldest.push_back(connections.spawn(connection(stream, site.clone())));
    }
}

async fn connection(stream: TcpStream, site: Arc<Site>) {
    let service = service_fn(move |request| {
        let answer = site.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS)
        .serve_connection(TokioIo::new(stream), service);
    // A client can disconnect or send an invalid request. Both cases are ignored.
    drop(timeout(DEADLINE, connection).await);
}

struct Site {
    pages: ServedPaths,
    metrics: Metrics,
    /// Not shared with tenants: only metrics scrapers use this lock.
    scraped: Unshared<[Option<(Instant, Bytes)>; 2]>,
}

impl Site {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let is_page = match self.pages {
            ServedPaths::Metrics => path == "/metrics",
            ServedPaths::Health => matches!(path, "/healthz" | "/readyz"),
        };
        if !is_page {
            return text(StatusCode::NOT_FOUND, "not found\n".to_owned());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n".to_owned());
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allowed);
            return answer;
        }
        match path {
            "/healthz" => health(self.metrics.live()),
            "/readyz" => health(self.metrics.ready()),
            _ => self.scrape(request),
        }
    }

    fn scrape(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let accepts = request.headers().get_all(ACCEPT).iter();
        let mut accepts = accepts.filter_map(|value| value.to_str().ok());
        let is_open_metrics = accepts.any(|value| value.contains("application/openmetrics-text"));
        let mut scraped = self.scraped.lock();
        let [open_metrics, prometheus] = &mut *scraped;
        let (format, content_type, last) = if is_open_metrics {
            (Format::OpenMetrics, OPEN_METRICS, open_metrics)
        } else {
            (Format::Prometheus, PROMETHEUS, prometheus)
        };
        let fresh = last.take_if(|(at, _)| at.elapsed() < FRESH);
        let (at, bytes) =
            fresh.unwrap_or_else(|| (Instant::now(), Bytes::from(self.metrics.text(format))));
        *last = Some((at, bytes.clone()));
        answer(StatusCode::OK, content_type, bytes)
    }
}

fn health(well: Result<(), NotWell>) -> Response<Full<Bytes>> {
    match well {
        Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    answer(status, TEXT, Bytes::from(text))
}

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}

#[cfg(test)]
mod tests;
