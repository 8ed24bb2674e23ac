//! The server's responses, and the effect of faults on them.

use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER};
use serde_json::Value;
use tokio::sync::mpsc;

use super::faults::Fault;
use super::handlers::Reply;
use super::resource::Target;
use super::status::Refusal;
use super::trickle::Pace;
use super::watch::{Piece, WatchPlan};
use super::{Shared, lock, watch};
use crate::clock::now;

/// The body size limit of kube-apiserver.
pub(super) const LARGEST_BODY: usize = 3 * 1024 * 1024;

/// The number of pieces of a body that the server queues for the client.
const QUEUE: usize = 16;

/// The size of a piece of a huge body, in bytes.
const CHUNK: usize = 64 * 1024;

type Body = BoxBody<Bytes, io::Error>;
pub(super) type Response = hyper::Response<Body>;

/// The response that a fault causes, if it replaces the server's own response.
pub(super) fn instead(fault: Option<&Fault>, target: &Target) -> Option<Answer> {
    match fault? {
        Fault::Status { code, retry_after } => {
            let (reason, message) = match code {
                429 => (
                    "TooManyRequests",
                    "too many requests, please try again later",
                ),
                500 => (
                    "InternalError",
                    "an error on the server has prevented the request",
                ),
                503 => (
                    "ServiceUnavailable",
                    "the server is currently unable to handle it",
                ),
                504 => (
                    "Timeout",
                    "the server was unable to return a response in time",
                ),
                404 => (
                    "NotFound",
                    "the server could not find the requested resource",
                ),
                401 => ("Unauthorized", "Unauthorized"),
                403 => ("Forbidden", "forbidden by the test"),
                _ => ("Unknown", "answered by the test"),
            };
            let refusal = Refusal::new(*code, reason, message, Value::Null);
            let mut answer = Answer::from(refusal);
            let after = retry_after.map(|seconds| seconds.to_string());
            answer
                .headers
                .extend(after.map(|after| (RETRY_AFTER, after)));
            Some(answer)
        }
        Fault::Answer {
            code,
            content_type,
            body,
        } => Some(Answer {
            code: *code,
            headers: vec![(CONTENT_TYPE, content_type.clone())],
            content: Content::Bytes(body.clone().into()),
        }),
        Fault::HugeBody { size } => Some(Answer::json(200, Content::Huge(*size))),
        Fault::Redirect { to } => {
            let path = &target.path;
            Some(Answer {
                code: 302,
                headers: vec![(LOCATION, format!("{to}{path}"))],
                content: Content::Bytes(Bytes::new()),
            })
        }
        _ => None,
    }
}

/// A response before its conversion to HTTP.
pub(super) struct Answer {
    pub(super) code: u16,
    headers: Vec<(hyper::header::HeaderName, String)>,
    content: Content,
}

pub(super) enum Content {
    Bytes(Bytes),
    Document(Value),
    Slow(Bytes, Duration),
    Huge(usize),
    Watch(WatchPlan),
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Json(code, object) => Self::json(code, Content::Document(object)),
            Reply::Watch(plan) => Self::json(200, Content::Watch(plan)),
            Reply::Text(code, text) => Self {
                code,
                headers: vec![(CONTENT_TYPE, "text/plain; charset=utf-8".into())],
                content: Content::Bytes(Bytes::from_static(text.as_bytes())),
            },
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::json(refusal.code, Content::Document(refusal.body))
    }
}

impl Answer {
    fn json(code: u16, content: Content) -> Self {
        Self {
            code,
            headers: vec![(CONTENT_TYPE, "application/json".into())],
            content,
        }
    }

    pub(super) fn too_large() -> Self {
        let message = format!("Request entity too large: limit is {LARGEST_BODY}");
        Refusal::new(
            413,
            "RequestEntityTooLarge",
            &message,
            serde_json::json!({}),
        )
        .into()
    }

    /// Applies the effect of a fault to the server's own response.
    pub(super) fn spoil(mut self, fault: Option<&Fault>, pace: &Pace) -> Self {
        match fault {
            Some(Fault::TrickleHead { every }) => *lock(pace) = Some(*every),
            Some(Fault::TrickleBody { every }) => {
                self.content = match self.content {
                    Content::Document(object) => Content::Slow(object.to_string().into(), *every),
                    Content::Bytes(bytes) => Content::Slow(bytes, *every),
                    other => other,
                };
            }
            Some(Fault::DateSkew { seconds }) => {
                self.headers.push((DATE, http_date(*seconds)));
            }
            Some(Fault::Merge { patch }) => {
                if let Content::Document(object) = &mut self.content {
                    json_patch::merge(object, patch);
                }
            }
            _ => {}
        }
        self
    }

    pub(super) fn into_response(self, shared: &Arc<Shared>, fault: Option<Fault>) -> Response {
        let mut response = hyper::Response::builder().status(self.code);
        let dated = self.headers.iter().any(|(name, _)| *name == DATE);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        if !dated {
            response = response.header(DATE, http_date(*lock(&shared.skew)));
        }
        response
            .body(self.content.into_body(shared, fault))
            .unwrap()
    }
}

impl Content {
    fn into_body(self, shared: &Arc<Shared>, fault: Option<Fault>) -> Body {
        let whole = |bytes: Bytes| Full::new(bytes).map_err(|never| match never {}).boxed();
        match self {
            Self::Bytes(bytes) => whole(bytes),
            Self::Document(object) => whole((object.to_string() + "\n").into()),
            Self::Slow(bytes, every) => streamed(|sender| trickle(bytes, every, sender)),
            Self::Huge(size) => streamed(|sender| pad(size, sender)),
            Self::Watch(plan) => {
                let shared = shared.clone();
                streamed(|sender| watch::run(shared, plan, fault, sender))
            }
        }
    }
}

fn streamed<F>(produce: impl FnOnce(mpsc::Sender<Piece>) -> F) -> Body
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(produce(sender));
    let pieces = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    BodyExt::boxed(StreamBody::new(pieces))
}

async fn trickle(bytes: Bytes, every: Duration, sender: mpsc::Sender<Piece>) {
    for at in 0..bytes.len() {
        if sender
            .send(Ok(Frame::data(bytes.slice(at..=at))))
            .await
            .is_err()
        {
            return;
        }
        tokio::time::sleep(every).await;
    }
}

async fn pad(size: usize, sender: mpsc::Sender<Piece>) {
    let chunk = Bytes::from(vec![b'x'; CHUNK]);
    let open = Bytes::from_static(b"{\"padding\":\"");
    let close = Bytes::from_static(b"\"}");
    let mut left = size.saturating_sub(open.len() + close.len());
    let mut piece = open;
    loop {
        if sender.send(Ok(Frame::data(piece))).await.is_err() {
            return;
        }
        if left == 0 {
            break;
        }
        piece = chunk.slice(..left.min(CHUNK));
        left -= piece.len();
    }
    let _ = sender.send(Ok(Frame::data(close))).await;
}

fn http_date(skew: i64) -> String {
    let amount = Duration::from_secs(skew.unsigned_abs());
    let date = if skew < 0 {
        now() - amount
    } else {
        now() + amount
    };
    httpdate::fmt_http_date(date.max(UNIX_EPOCH))
}
