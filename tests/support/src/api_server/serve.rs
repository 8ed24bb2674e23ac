//! Connections and requests: TLS, HTTP/2 and HTTP/1.1, with gates and faults before and after the handlers.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::answer::{Answer, LARGEST_BODY, Response, instead};
use super::faults::{ConnectionFault, Fault};
use super::handlers::{Call, handle};
use super::log::{Arrived, Step, Verdict};
use super::resource::{REQUESTS, Target};
use super::tls::{Acceptors, HTTP_2};
use super::trickle::{Pace, Trickle};
use super::{Shared, lock};
use crate::serving::Cut;

/// The maximum number of calls and watches on one connection, as in kube-apiserver.
const MAX_STREAMS: u32 = 100;

/// Data that is neither TLS nor HTTP of any version.
const GARBAGE: &[u8] = &[0xa5; 512];

/// A TLS record with the fatal alert `internal_error`.
const INTERNAL_ERROR: &[u8] = &[0x15, 3, 3, 0, 2, 2, 80];

/// The time between two bytes of a slow connection.
const SLOW: Duration = Duration::from_secs(1);

/// The size of a response head, in bytes.
const HEAD_LEN: u32 = 200;

/// Accepts connections until the task is dropped.
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
    let _open = Open::new(shared.clone());
    let mut dropped = shared.drops.subscribe();
    let Some(acceptor) = acceptors.choose(fault) else {
        return tokio::select! {
            () = stay_silent(&mut tcp, fault) => {}
            _ = dropped.changed() => {}
        };
    };
    let _ = tcp.set_nodelay(true);
    let Ok(mut tls) = acceptor.accept(tcp).await else {
        return;
    };
    if fault == Some(ConnectionFault::NotHttp) {
        let _ = tls.write_all(GARBAGE).await;
        return stay_silent(tls.get_mut().0, Some(ConnectionFault::SilentAtTls)).await;
    }
    let certificates: Vec<CertificateDer<'static>> = tls
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|certificate| certificate.clone().into_owned())
        .collect();
    let is_http2 = tls.get_ref().1.alpn_protocol() == Some(HTTP_2);
    let pace = (fault == Some(ConnectionFault::Slow)).then_some(SLOW);
    let peer = Arc::new(Peer {
        number,
        is_http2,
        certificates,
        pace: Pace::new(Mutex::new(pace)),
    });
    let io = TokioIo::new(Trickle::new(tls, peer.pace.clone()));
    let cut = Arc::new(Notify::new());
    let service = service_fn(|request| {
        let (peer, shared, cut) = (peer.clone(), shared.clone(), cut.clone());
        async move {
            // The request runs in a separate task, because it continues after its client disconnects.
            let served = tokio::spawn(serve(peer, shared, request));
            let answer = served.await.map_err(|_| Cut).flatten();
            if answer.is_err() && is_http2 {
                // The connection is closed, because the error would end only this request.
                cut.notify_one();
                pending::<()>().await;
            }
            answer
        }
    });
    let connection = async {
        if is_http2 {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder
                .auto_date_header(false)
                .max_concurrent_streams(MAX_STREAMS);
            builder.serve_connection(io, service).await
        } else {
            let mut builder = hyper::server::conn::http1::Builder::new();
            let connection = builder
                .auto_date_header(false)
                .serve_connection(io, service);
            connection.await
        }
    };
    tokio::select! {
        _ = connection => {}
        _ = dropped.changed() => {}
        () = cut.notified() => {}
    }
}

/// A connection that counts as open until this value is dropped.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn stay_silent(tcp: &mut TcpStream, fault: Option<ConnectionFault>) {
    match fault {
        Some(ConnectionFault::SilentAtTls) => {
            let mut hello = [0; 4096];
            while tcp.read(&mut hello).await.is_ok_and(|read| read > 0) {}
        }
        Some(ConnectionFault::NotTls) => {
            let _ = tcp.write_all(GARBAGE).await;
        }
        Some(ConnectionFault::TlsAlert) => {
            // The whole message is read, because data that is not read would reset the connection.
            let mut hello = [0; 4096];
            let _ = tcp.read(&mut hello).await;
            let _ = tcp.write_all(INTERNAL_ERROR).await;
        }
        Some(ConnectionFault::SilentAtTcp) => pending().await,
        Some(_) | None => {}
    }
}

struct Peer {
    number: usize,
    is_http2: bool,
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
    if let (true, Some(Fault::TrickleHead { every })) = (peer.is_http2, &fault) {
        // In HTTP/2, the head of a response is a single frame, and does not delay other responses.
        tokio::time::sleep(*every * HEAD_LEN).await;
        return Ok(answer.into_response(&shared, None));
    }
    let answer = answer.spoil(fault.as_ref(), &peer.pace);
    shared.log.answered(number, answer.code);
    Ok(answer.into_response(&shared, fault))
}

/// A request, with all data that the server has about it.
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

/// Stores another client's object under the name from the creation request.
fn squat(store: &mut super::store::Store, body: &[u8], patch: &Value) {
    let Ok(mut object) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    json_patch::merge(&mut object["spec"], patch);
    object["status"] = serde_json::json!({});
    let _ = store.create(&REQUESTS, object);
}
