//! Connections and requests: TLS, HTTP/1.1, gates and faults around the handlers.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER, USER_AGENT};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::faults::{ConnectionFault, Fault};
use super::handlers::{Call, Reply, handle};
use super::log::{Arrived, Step, Verdict};
use super::resource::{REQUESTS, Target};
use super::status::Refusal;
use super::tls::Acceptors;
use super::trickle::{Pace, Trickle};
use super::watch::{Piece, WatchPlan};
use super::{Shared, lock, watch};
use crate::clock::now;

/// As kube-apiserver's own limit.
const LARGEST_BODY: usize = 3 * 1024 * 1024;

/// Pieces of a body that wait for the client.
const QUEUE: usize = 16;

/// A piece of a huge body.
const CHUNK: usize = 64 * 1024;

type Body = BoxBody<Bytes, io::Error>;
type Response = hyper::Response<Body>;

/// The connection is to be cut instead of an answer.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut by the test")
    }
}

impl std::error::Error for Cut {}

/// Accepts until the task is dropped.
pub(super) async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    acceptors: Acceptors,
) -> io::Result<Infallible> {
    let acceptors = Arc::new(acceptors);
    let mut number = 0;
    loop {
        let (tcp, _) = listener.accept().await?;
        let fault = lock(&shared.faults).take_connection();
        tokio::spawn(connection(
            number,
            tcp,
            fault,
            shared.clone(),
            acceptors.clone(),
        ));
        number += 1;
    }
}

async fn connection(
    number: usize,
    mut tcp: TcpStream,
    fault: Option<ConnectionFault>,
    shared: Arc<Shared>,
    acceptors: Arc<Acceptors>,
) {
    lock(&shared.connections).push(fault);
    let mut dropped = shared.drops.subscribe();
    let Some(acceptor) = acceptors.choose(fault) else {
        return tokio::select! {
            () = stay_silent(&mut tcp, fault) => {}
            _ = dropped.changed() => {}
        };
    };
    let _ = tcp.set_nodelay(true);
    let Ok(tls) = acceptor.accept(tcp).await else {
        return;
    };
    let certificates: Vec<CertificateDer<'static>> = tls
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|certificate| certificate.clone().into_owned())
        .collect();
    let peer = Arc::new(Peer {
        number,
        certificates,
        pace: Pace::default(),
    });
    let io = TokioIo::new(Trickle::new(tls, peer.pace.clone()));
    let service = service_fn(|request| {
        let (peer, shared) = (peer.clone(), shared.clone());
        async move {
            // In a task of its own: a client that is gone does not undo its request.
            tokio::spawn(serve(peer, shared, request))
                .await
                .map_err(|_| Cut)?
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .auto_date_header(false)
        .serve_connection(io, service);
    tokio::select! {
        _ = connection => {}
        _ = dropped.changed() => {}
    }
}

async fn stay_silent(tcp: &mut TcpStream, fault: Option<ConnectionFault>) {
    match fault {
        Some(ConnectionFault::SilentAtTls) => {
            let mut hello = [0; 4096];
            while tcp.read(&mut hello).await.is_ok_and(|read| read > 0) {}
        }
        Some(ConnectionFault::SilentAtTcp) => pending().await,
        Some(_) | None => {}
    }
}

struct Peer {
    number: usize,
    certificates: Vec<CertificateDer<'static>>,
    pace: Pace,
}

async fn serve(
    peer: Arc<Peer>,
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
) -> Result<Response, Cut> {
    let (head, body) = request.into_parts();
    let query = head.uri.query().unwrap_or_default();
    let target = Target::parse(&head.method, head.uri.path(), query);
    let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    let collected = Limited::new(body, LARGEST_BODY).collect().await;
    let too_large = collected.is_err();
    let body = collected.map(|body| body.to_bytes()).unwrap_or_default();
    let number = shared.log.record(Arrived {
        connection: peer.number,
        method: head.method.as_str(),
        query,
        user_agent: header(USER_AGENT).unwrap_or_default(),
        target: &target,
        body: &body,
    });
    let exchange = Exchange {
        peer: &peer,
        shared: &shared,
        target: &target,
        authorization: header(AUTHORIZATION),
        content_type: header(CONTENT_TYPE).unwrap_or_default(),
        body: &body,
        number,
    };
    exchange.pass(Step::Received).await?;
    let fault = lock(&shared.faults).take(&target);
    let answer = if too_large {
        Some(Answer::too_large())
    } else {
        instead(fault.as_ref(), &target)
    };
    let answer = match answer {
        Some(answer) => answer,
        None => match fault {
            Some(Fault::Cut) => return Err(Cut),
            Some(Fault::Hang) => pending().await,
            _ => exchange.perform(fault.as_ref()).await?,
        },
    };
    let answer = answer.spoil(fault.as_ref(), &peer.pace);
    shared.log.answered(number, answer.code);
    Ok(answer.into_response(&shared, fault))
}

/// One request and all that is known of it.
struct Exchange<'a> {
    peer: &'a Peer,
    shared: &'a Arc<Shared>,
    target: &'a Target,
    authorization: Option<&'a str>,
    content_type: &'a str,
    body: &'a [u8],
    number: usize,
}

impl Exchange<'_> {
    async fn pass(&self, step: Step) -> Result<(), Cut> {
        let gates: Vec<_> = lock(&self.shared.gates)
            .iter()
            .filter(|gate| gate.holds(self.target, step))
            .cloned()
            .collect();
        for gate in gates {
            if gate.pass().await == Verdict::Cut {
                return Err(Cut);
            }
        }
        Ok(())
    }

    async fn perform(&self, fault: Option<&Fault>) -> Result<Answer, Cut> {
        let answer = self.decide(fault);
        self.pass(Step::Stored).await?;
        match fault {
            Some(Fault::LoseAnswer) => Err(Cut),
            Some(Fault::HangAfterStore) => pending().await,
            _ => Ok(answer),
        }
    }

    fn decide(&self, fault: Option<&Fault>) -> Answer {
        let mut state = lock(&self.shared.state);
        let state = &mut *state;
        let user = match state
            .authenticator
            .authenticate(&self.peer.certificates, self.authorization)
        {
            Ok(user) => user,
            Err(refusal) => return refusal.into(),
        };
        self.shared.log.authenticated(self.number, &user.name);
        if let Some(Fault::Squat { spec }) = fault {
            squat(&mut state.store, self.body, spec);
        }
        let content_type = self
            .content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        let call = Call {
            user: &user,
            target: self.target,
            content_type,
            body: self.body,
        };
        match handle(
            &mut state.store,
            &state.signer,
            &self.shared.authority,
            &call,
        ) {
            Ok(reply) => reply.into(),
            Err(refusal) => refusal.into(),
        }
    }
}

/// Stores another's object under the name that is being created.
fn squat(store: &mut super::store::Store, body: &[u8], patch: &Value) {
    let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    json_patch::merge(&mut object["spec"], patch);
    object["status"] = serde_json::json!({});
    let _ = store.create(&REQUESTS, object);
}

/// What a fault answers in place of the server.
fn instead(fault: Option<&Fault>, target: &Target) -> Option<Answer> {
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

/// What is answered, before it is HTTP.
struct Answer {
    code: u16,
    headers: Vec<(hyper::header::HeaderName, String)>,
    content: Content,
}

enum Content {
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

    fn too_large() -> Self {
        let message = format!("Request entity too large: limit is {LARGEST_BODY}");
        Refusal::new(
            413,
            "RequestEntityTooLarge",
            &message,
            serde_json::json!({}),
        )
        .into()
    }

    /// Applies what a fault does to an answer that was given.
    fn spoil(mut self, fault: Option<&Fault>, pace: &Pace) -> Self {
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

    fn into_response(self, shared: &Arc<Shared>, fault: Option<Fault>) -> Response {
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
