//! In-memory API servers that answer after a latency, in simulated time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until};

const BOOKMARK: &[u8] = br#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"A","metadata":{"resourceVersion":"1"}}}
"#;

pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

/// A parsed call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) body: Value,
}

impl Call {
    pub(crate) fn is_watch(&self) -> bool {
        self.query.contains_key("watch")
    }

    fn number(&self, key: &str) -> Option<usize> {
        self.query.get(key)?.parse().ok()
    }
}

/// An answer to a call.
pub(crate) enum Answer {
    Object(Value),
    /// A paged list with this number of items.
    Items(usize, Box<dyn Fn(usize) -> Value + Send>),
    Status(u16),
    /// A watch that receives the events for all watches on this path.
    Watch,
}

/// The simulated network: its latency, its failures, and the number of calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    pub(crate) latency: Duration,
    /// One in this number of calls fails. If the number is zero, no call fails.
    pub(crate) failing: u64,
}

/// An API server, without the code that creates its responses.
#[derive(Debug)]
pub(crate) struct ApiServer {
    network: Network,
    calls: AtomicU64,
    watches: AtomicU64,
    /// The open watches, keyed by path.
    watching: Mutex<BTreeMap<String, Vec<UnboundedSender<Bytes>>>>,
    /// The number of calls so far for each operation.
    by_path: Mutex<BTreeMap<String, u64>>,
}

impl ApiServer {
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
            calls: AtomicU64::new(0),
            watches: AtomicU64::new(0),
            watching: Mutex::default(),
            by_path: Mutex::default(),
        }
    }

    /// The number of calls so far, including watches.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Sends an event to every watch on this path.
    pub(crate) fn send(&self, path: &str, kind: &str, object: &Value) {
        let event = json!({"type": kind, "object": object}).to_string() + "\n";
        let mut watching = self.watching.lock().unwrap();
        let open = watching.entry(path.to_owned()).or_default();
        open.retain(|watch| watch.send(Bytes::from(event.clone())).is_ok());
    }

    /// The number of calls so far for each operation.
    pub(crate) fn calls_by_path(&self) -> BTreeMap<String, u64> {
        self.by_path.lock().unwrap().clone()
    }

    fn count(&self, called: String) {
        *self.by_path.lock().unwrap().entry(called).or_default() += 1;
    }

    pub(crate) async fn serve(
        self: Arc<Self>,
        request: Request<Body>,
        answer: impl FnOnce(&Call) -> Answer,
    ) -> Response<AnswerBody> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let pairs = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
        let call = Call {
            method: head.method,
            path: head.uri.path().to_owned(),
            query: pairs.into_owned().collect(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let watched = if call.is_watch() {
            "WATCH"
        } else {
            call.method.as_str()
        };
        self.count(format!("{watched} {}", call.path));
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        sleep(self.network.latency).await;
        if self.network.failing > 0 && number % self.network.failing == self.network.failing - 1 {
            return status(503);
        }
        match answer(&call) {
            Answer::Object(object) => whole(200, &object),
            Answer::Status(code) => status(code),
            Answer::Items(count, item) => whole(200, &page(&call, count, &item)),
            Answer::Watch => self.watch(&call),
        }
    }

    fn watch(&self, call: &Call) -> Response<AnswerBody> {
        self.watches.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = unbounded_channel();
        let mut watching = self.watching.lock().unwrap();
        watching.entry(call.path.clone()).or_default().push(sender);
        drop(watching);
        let seconds = call.number("timeoutSeconds").unwrap_or(300);
        let end = Instant::now() + Duration::from_secs(u64::try_from(seconds).unwrap());
        // The last message is a bookmark, as from a real API server.
        let frames = stream::unfold(
            Some(events),
            move |events: Option<UnboundedReceiver<Bytes>>| async move {
                let mut events = events?;
                tokio::select! {
                    event = events.recv() => Some((event?, Some(events))),
                    () = sleep_until(end) => Some((Bytes::from_static(BOOKMARK), None)),
                }
            },
        );
        let body = StreamBody::new(frames.map(|bytes| Ok(Frame::data(bytes))));
        Response::new(body.boxed_unsync())
    }
}

fn page(call: &Call, count: usize, item: &(dyn Fn(usize) -> Value + Send)) -> Value {
    let from = call.number("continue").unwrap_or(0);
    let to = (from + call.number("limit").unwrap_or(count)).min(count);
    let items: Vec<Value> = (from..to).map(item).collect();
    let next = if to < count {
        to.to_string()
    } else {
        String::new()
    };
    json!({
        "apiVersion": "v1", "kind": "List",
        "metadata": {"resourceVersion": "1", "continue": next},
        "items": items,
    })
}

pub(crate) fn whole(code: u16, object: &Value) -> Response<AnswerBody> {
    let body = Full::new(Bytes::from(object.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

pub(crate) fn status(code: u16) -> Response<AnswerBody> {
    let object = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": if code == 404 { "NotFound" } else { "ServiceUnavailable" },
        "message": "as the benchmark has it",
    });
    whole(code, &object)
}
