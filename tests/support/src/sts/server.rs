//! Connections and calls: TLS, HTTP/1.1, and faults in the responses.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, LOCATION};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::answers::{Denied, Permitted, assumed, error, identities, identity, judge};
use super::faults::{ConnectionFault, Fault};
use super::{Call, Shared};
use crate::pki::{CertificateAuthority, Contents, KeyAndCertificate};
use crate::serving::Cut;

/// The size limit of a body, in bytes. A request is a few hundred bytes long.
const LARGEST_BODY: usize = 64 * 1024;

/// The names in the server's certificate: its address, and some regional endpoints for clients that connect through a
/// proxy.
const NAMES: [&str; 6] = [
    "127.0.0.1",
    "localhost",
    "sts.eu-west-1.amazonaws.com",
    "sts.us-east-1.amazonaws.com",
    "sts.cn-north-1.amazonaws.com.cn",
    "sts.us-gov-west-1.amazonaws.com",
];

type Response = hyper::Response<BoxBody<Bytes, Infallible>>;

/// A TLS acceptor for each certificate.
pub(super) struct Acceptors {
    good: TlsAcceptor,
    another_authority: TlsAcceptor,
    another_name: TlsAcceptor,
}

impl Acceptors {
    pub(super) fn new(authority: &CertificateAuthority) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let acceptor = |pair: &KeyAndCertificate| {
            let config = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![pair.certificate_der()], pair.key_der())
                .unwrap();
            TlsAcceptor::from(Arc::new(config))
        };
        let contents = Contents::server(&NAMES);
        Self {
            good: acceptor(&authority.issue(&contents)),
            another_authority: acceptor(&CertificateAuthority::new("another").issue(&contents)),
            another_name: acceptor(&authority.issue(&Contents::server(&["another.test"]))),
        }
    }
}

/// Accepts connections until the task is dropped.
pub(super) async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    acceptors: Acceptors,
) -> io::Result<Infallible> {
    loop {
        let (tcp, _) = listener.accept().await?;
        let fault = {
            let mut state = shared.state();
            state.connections += 1;
            state.faults.take_connection()
        };
        let acceptor = match fault {
            None => Some(&acceptors.good),
            Some(ConnectionFault::AnotherAuthority) => Some(&acceptors.another_authority),
            Some(ConnectionFault::AnotherName) => Some(&acceptors.another_name),
            Some(ConnectionFault::Silent) => None,
            Some(ConnectionFault::Close) => continue,
        };
        tokio::spawn(connection(tcp, acceptor.cloned(), shared.clone()));
    }
}

async fn connection(tcp: TcpStream, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let _ = tcp.set_nodelay(true);
    let Some(acceptor) = acceptor else {
        return pending().await;
    };
    let Ok(tls) = acceptor.accept(tcp).await else {
        return;
    };
    let service = service_fn(|request| serve(shared.clone(), request));
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(tls), service)
        .await;
}

async fn serve(shared: Arc<Shared>, request: hyper::Request<Incoming>) -> Result<Response, Cut> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, LARGEST_BODY)
        .collect()
        .await
        .map_err(|_| Cut)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut call = Call {
        method: head.method.to_string(),
        target: head
            .uri
            .path_and_query()
            .map_or_else(String::new, ToString::to_string),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value.as_bytes())))
            .collect(),
        body: text(&body.to_bytes()),
        caller: None,
        outcome: String::new(),
    };
    let as_json = call.header("accept") == Some("application/json");
    let (fault, verdict) = {
        let mut state = shared.state();
        let fault = state.faults.take();
        let verdict = judge(&mut call, &mut state);
        call.outcome = match (&fault, &verdict) {
            (Some(fault), _) => format!("{fault:?}"),
            (None, Ok(_)) => "OK".into(),
            (None, Err(denied)) => denied.code.clone(),
        };
        state.calls.push(call);
        (fault, verdict)
    };
    let refused = |denied: &Denied| answer(denied.status, as_json, error(denied, as_json));
    let good = |results: &[serde_json::Value]| answer(200, as_json, identities(results, as_json));
    let verdict = match verdict {
        Ok(Permitted::Assumed(action, session)) if fault.is_none() => {
            return Ok(answer(200, false, assumed(action, &session)));
        }
        Ok(Permitted::Assumed(_, session)) => Ok(session.principal),
        Ok(Permitted::Identity(principal)) => Ok(principal),
        Err(denied) => Err(denied),
    };
    let Some(fault) = fault else {
        return Ok(match &verdict {
            Ok(principal) => good(&[identity(principal)]),
            Err(denied) => refused(denied),
        });
    };
    match (fault, verdict) {
        (Fault::Cut, _) => Err(Cut),
        (Fault::Hang, _) => pending().await,
        (
            Fault::Error {
                status,
                code,
                message,
            },
            _,
        ) => Ok(refused(&Denied {
            status,
            code,
            message,
        })),
        (
            Fault::Answer {
                status,
                content_type,
                body,
            },
            _,
        ) => Ok(typed(status, &content_type, full(body))),
        (Fault::Redirect { to }, _) => {
            let mut response = answer(307, as_json, String::new());
            response.headers_mut().insert(LOCATION, to.parse().unwrap());
            Ok(response)
        }
        (Fault::HugeBody { size }, _) => Ok(answer(200, as_json, " ".repeat(size))),
        (_, Err(denied)) => Ok(refused(&denied)),
        (Fault::NoResult, Ok(_)) => Ok(good(&[])),
        (Fault::TwoResults { other }, Ok(principal)) => {
            Ok(good(&[identity(&other), identity(&principal)]))
        }
        (Fault::Trickle { every }, Ok(principal)) => {
            let body = identities(&[identity(&principal)], as_json);
            Ok(typed(200, "application/json", trickle(body.into(), every)))
        }
    }
}

fn answer(status: u16, as_json: bool, body: String) -> Response {
    let content_type = if as_json {
        "application/json"
    } else {
        "text/xml"
    };
    typed(status, content_type, full(body.into_bytes()))
}

fn typed(status: u16, content_type: &str, body: BoxBody<Bytes, Infallible>) -> Response {
    hyper::Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content_type)
        .header("x-amzn-requestid", "01234567-89ab-cdef-0123-456789abcdef")
        .body(body)
        .unwrap()
}

fn full(body: Vec<u8>) -> BoxBody<Bytes, Infallible> {
    Full::new(Bytes::from(body)).boxed()
}

fn trickle(body: Vec<u8>, every: Duration) -> BoxBody<Bytes, Infallible> {
    let bytes = stream::unfold(body.into_iter(), move |mut rest| async move {
        let byte = rest.next()?;
        tokio::time::sleep(every).await;
        Some((Ok(Frame::data(Bytes::from(vec![byte]))), rest))
    });
    StreamBody::new(bytes).boxed()
}
