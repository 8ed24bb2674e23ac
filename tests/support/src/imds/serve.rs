//! Connections and requests.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::faults::Fault;
use super::{Request, Shared, lock};
use crate::serving::Cut;

const TOKEN: &str = "x-aws-ec2-metadata-token";
const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds";

/// The versions of the metadata that the service serves. All versions contain the same values.
const VERSIONS: [&str; 3] = ["/latest/", "/2021-03-23/", "/2009-04-04/"];

/// The size of a piece of a huge body, in bytes.
const PIECE: usize = 64 * 1024;

type Body = UnsyncBoxBody<Bytes, Infallible>;
type Response = hyper::Response<Body>;

/// Accepts connections until `stop` is dropped, which also closes the connections.
pub(super) async fn accept(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    mut stop: oneshot::Receiver<()>,
) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stop => return,
            accepted = listener.accept() => if let Ok((tcp, _)) = accepted {
                connections.spawn(connection(tcp, shared.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(tcp: TcpStream, shared: Arc<Shared>) {
    let number = {
        let mut connections = lock(&shared.connections);
        *connections += 1;
        *connections - 1
    };
    let _ = tcp.set_nodelay(true);
    let service = service_fn(|request| serve(number, shared.clone(), request));
    let http =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tcp), service);
    let _ = pin!(http).await;
}

async fn serve(
    connection: usize,
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
) -> Result<Response, Cut> {
    let asked = Asked::of(&request, &shared);
    let number = {
        let mut requests = lock(&shared.requests);
        requests.push(Request {
            connection,
            method: asked.method.to_string(),
            path: asked.full_path.clone(),
            authorized: asked.token_left.is_some(),
            ttl: asked.ttl,
            code: None,
        });
        requests.len() - 1
    };
    let fault = lock(&shared.faults).take(&asked.path);
    let response = match fault {
        None => asked.answer(&shared),
        Some(Fault::Status(code)) => status(StatusCode::from_u16(code).unwrap()),
        Some(Fault::Cut) => return Err(Cut),
        Some(Fault::Hang) => pending().await,
        Some(Fault::Delay(delay)) => {
            sleep(delay).await;
            asked.answer(&shared)
        }
        Some(Fault::Body(body)) => ok(body),
        Some(Fault::Huge(size)) => hyper::Response::new(huge(size)),
        Some(Fault::Trickle { every }) => trickled(asked.answer(&shared), every).await,
        Some(Fault::Redirect { to }) => {
            let mut response = status(StatusCode::FOUND);
            let to = format!("{to}{}", asked.full_path);
            response
                .headers_mut()
                .insert("location", to.parse().unwrap());
            response
        }
    };
    if let Some(request) = lock(&shared.requests).get_mut(number) {
        request.code = Some(response.status().as_u16());
    }
    Ok(response)
}

/// A parsed request.
struct Asked {
    method: Method,
    full_path: String,
    /// The path below the version. Empty for other paths.
    path: String,
    ttl: Option<u32>,
    token_left: Option<u64>,
    forwarded: bool,
}

impl Asked {
    fn of(request: &hyper::Request<Incoming>, shared: &Shared) -> Self {
        let header = |name| request.headers().get(name)?.to_str().ok();
        let full_path = request.uri().path_and_query().map(ToString::to_string);
        let full_path = full_path.unwrap_or_default();
        let sessions = lock(&shared.sessions);
        Self {
            method: request.method().clone(),
            path: VERSIONS
                .iter()
                .find_map(|version| full_path.strip_prefix(version))
                .unwrap_or_default()
                .to_owned(),
            full_path,
            ttl: header(TTL).and_then(|ttl| ttl.parse().ok()),
            token_left: header(TOKEN).and_then(|token| sessions.left(token)),
            forwarded: request.headers().contains_key("x-forwarded-for"),
        }
    }

    fn answer(&self, shared: &Shared) -> Response {
        match (&self.method, self.path.as_str()) {
            (&Method::PUT, "api/token") => self.token(shared),
            (&Method::GET | &Method::HEAD, _) => self.read(shared),
            _ => status(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    fn token(&self, shared: &Shared) -> Response {
        if self.forwarded {
            return status(StatusCode::FORBIDDEN);
        }
        let Some((token, ttl)) = lock(&shared.sessions).open(self.ttl) else {
            return status(StatusCode::BAD_REQUEST);
        };
        let mut response = ok(token.into_bytes());
        response.headers_mut().insert(TTL, ttl.into());
        response
    }

    fn read(&self, shared: &Shared) -> Response {
        let Some(left) = self.token_left else {
            return status(StatusCode::UNAUTHORIZED);
        };
        let instance = lock(&shared.instance);
        let value = instance.at(&self.path);
        let Some(body) = value.or_else(|| instance.list(&self.path)) else {
            return status(StatusCode::NOT_FOUND);
        };
        drop(instance);
        let mut response = ok(body);
        response.headers_mut().insert(TTL, left.into());
        response
    }
}

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

fn ok(body: Vec<u8>) -> Response {
    let mut response = hyper::Response::new(full(body));
    let headers = response.headers_mut();
    headers.insert("content-type", "text/plain".parse().unwrap());
    headers.insert("server", "EC2ws".parse().unwrap());
    response
}

/// The page that the service returns for every error.
fn status(code: StatusCode) -> Response {
    let words = code.canonical_reason().unwrap_or_default();
    let number = code.as_u16();
    let page = format!(
        "<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n<html><head><title>{number} - {words}</title></head>\
         <body><h1>{number} - {words}</h1></body></html>\n"
    );
    let mut response = ok(page.into_bytes());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert("content-type", "text/html".parse().unwrap());
    response
}

fn huge(size: usize) -> Body {
    let pieces = stream::unfold(size, |left| async move {
        let piece = left.min(PIECE);
        let frame = Frame::data(Bytes::from(vec![b'a'; piece]));
        (piece > 0).then(|| (Ok::<_, Infallible>(frame), left - piece))
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Returns the same response, whose body is sent byte by byte.
async fn trickled(response: Response, every: Duration) -> Response {
    let (mut head, body) = response.into_parts();
    let bytes = body.collect().await.expect("it is whole").to_bytes();
    head.headers.insert("content-length", bytes.len().into());
    let bytes = stream::unfold(bytes, move |mut left| async move {
        sleep(every).await;
        (!left.is_empty()).then(|| (Ok::<_, Infallible>(Frame::data(left.split_to(1))), left))
    });
    hyper::Response::from_parts(head, StreamBody::new(bytes).boxed_unsync())
}
