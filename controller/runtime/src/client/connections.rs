//! The connections to an API server. Uses as few connections as the server allows, with HTTP/2 if the server supports
//! it.
//!
//! # Guarantees
//!
//! - A call does not wait for another call. A call can wait for a new connection, because connections are opened one at
//!   a time.
//! - A broken connection is detected even without traffic. After a call on a connection without a timely response, the
//!   connection is not used for further calls. If a call to an operator's API server is dropped early, other calls are
//!   not affected.
//! - The number of received bytes that have not been read is limited for each call and each connection. Memory for
//!   these bytes, and for the server's certificates, is reserved from the handshake until the connection closes. The
//!   connections of one namespace use at most half of this memory.
//! - The processor time for connections to tenants' API servers is limited for each namespace.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::HOST;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use kubelet_attestation::ensure;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::processor::Processor;
use super::response_limits::{Excess, NamedBy};
use crate::memory::{Holding, Share};
use crate::shared::{Lent, Loan, Lock, Shared, Turnstile, visit};

/// The protocol names for ALPN (RFC 7301 section 6).
const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// The deadline for opening a connection, including its TLS handshake, as in kube.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(30);

/// The idle time after which the connection sends a ping to the API server: client-go's `ReadIdleTimeout`.
const PING_AFTER: Duration = Duration::from_secs(30);

/// The deadline for the response to a ping: client-go's `PingTimeout`.
const PING_DEADLINE: Duration = Duration::from_secs(15);

/// The maximum number of unanswered TCP keepalive probes.
const PROBES: u32 = 3;

/// The maximum number of calls and watches on one connection, even if the API server allows more, because they share
/// the connection's window.
const MAX_CALLS: usize = 100;

/// The maximum number of attempts to send a call if connections close before the call is sent.
const MAX_ATTEMPTS: usize = 3;

/// The time without a response from an operator's API server after which a dropped call indicates that its connection
/// could be broken. It is shorter than the deadlines of all calls. A tenant can cause dropped calls at any time, for
/// example by deleting a Cluster while its Secrets are being listed. Without this minimum time, all tenants would then
/// wait for a new connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// The length of a server's certificates that is not reserved separately. The certificates of an API server are a few
/// kilobytes long. TLS allows 64 KiB, and the library keeps the certificates as long as the connection is open.
const NORMAL_CERTIFICATES: usize = 16 * 1024;

/// The limits on received bytes that have not been read.
#[derive(Debug, Clone, Copy)]
struct Windows {
    /// The limit for one response.
    answer: u32,
    /// The limit for all responses on one connection.
    connection: u32,
    /// The limit for all connections to this API server together. The memory for this limit is reserved.
    own: usize,
}

impl Windows {
    const fn of(named_by: NamedBy) -> Self {
        match named_by {
            // A page of 500 Machines is a few megabytes long, and the connection can have a high latency.
            NamedBy::Operator => Self {
                answer: 1024 * 1024,
                connection: 8 * 1024 * 1024,
                own: usize::MAX,
            },
            NamedBy::Tenant => Self {
                answer: 64 * 1024,
                connection: 128 * 1024,
                own: 256 * 1024,
            },
        }
    }

    /// The memory share for connections to an API server in this namespace.
    fn share(self, namespace: &str) -> Share {
        Share::of_connections(namespace, self.own)
    }

    /// The memory of a connection to a server whose certificates have this length.
    fn memory(self, is_http2: bool, certificates: usize) -> usize {
        let window = if is_http2 {
            self.connection
        } else {
            self.answer
        };
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        window.saturating_add(certificates.saturating_sub(NORMAL_CERTIFICATES))
    }
}

/// Opens TCP connections.
pub(super) type Dial = BoxCloneSyncService<Uri, TokioIo<TcpStream>, BoxError>;

/// The connections to one API server.
pub(super) struct Connections {
    dial: Dial,
    tls: TlsConnector,
    /// The name in the API server's certificate, if it differs from the URL's host.
    server_name: Option<String>,
    windows: Windows,
    share: Share,
    /// The processor time budget, if the API server belongs to a tenant.
    processor: Option<Processor>,
    /// The time without a response after which a dropped call makes its connection unusable for further calls.
    patience: Duration,
    open: Shared<Vec<Connection>>,
    /// Not shared between API servers: each has a separate lock. Tenants do not choose the management cluster's
    /// address.
    dialling: Turnstile<()>,
}

impl Connections {
    /// Creates a service that sends calls over connections from `dial`. `named_by` states whether an operator or a
    /// tenant configured the API server. The memory for a tenant's server counts against this namespace.
    pub(super) fn service(
        dial: Dial,
        mut tls: ClientConfig,
        server_name: Option<String>,
        (named_by, namespace): (NamedBy, &str),
    ) -> impl Service<Request<Body>, Response = Response<Answer>, Error = BoxError, Future: Send>
    + Clone
    + Send
    + use<> {
        tls.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
        // Connections are long-lived, so session resumption saves little, and a session's state takes more memory than
        // a connection.
        tls.resumption = Resumption::disabled();
        let windows = Windows::of(named_by);
        let connections = Arc::new(Self {
            dial,
            tls: TlsConnector::from(Arc::new(tls)),
            server_name,
            windows,
            share: windows.share(namespace),
            processor: (named_by == NamedBy::Tenant).then(|| Processor::of(namespace)),
            patience: match named_by {
                NamedBy::Operator => PATIENCE,
                NamedBy::Tenant => Duration::ZERO,
            },
            open: Shared::new(Lock::Connections, Vec::new()),
            dialling: Turnstile::default(),
        });
        service_fn(move |request| {
            let connections = connections.clone();
            async move { connections.send(request).await }
        })
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let server = request.uri().clone();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut error = match self.begin(request, &server).await?.await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            match error.take_message() {
                // The connection closed before the call was sent.
                Some(unsent) if attempts < MAX_ATTEMPTS => request = unsent,
                Some(_) | None => return Err(error.into_error().into()),
            }
            request.uri_mut().clone_from(&server);
        }
    }

    /// Starts the call on a connection with free capacity, or on a new connection.
    async fn begin(&self, request: Request<Body>, server: &Uri) -> Result<Call, BoxError> {
        let request = match self.begin_on_open(Box::new(request)) {
            Ok(call) => return Ok(call),
            Err(request) => request,
        };
        let _dialling = self.dialling.lock().await;
        // During the wait, another call might have opened a connection.
        let request = match self.begin_on_open(request) {
            Ok(call) => return Ok(call),
            Err(request) => request,
        };
        // Boxed, because a call reserves space for every future that it can await, and few calls open a connection.
        let connecting = self.connect(server).boxed();
        let mut connection = timeout(HANDSHAKE_DEADLINE, connecting).await??;
        let call = connection.begin(*request);
        self.open.write(|open| open.push(connection));
        Ok(call)
    }

    fn begin_on_open(&self, request: Box<Request<Body>>) -> Result<Call, Box<Request<Body>>> {
        self.open.write(|open| {
            // Calls on a dropped connection continue.
            open.retain(|connection| {
                visit();
                !connection.is_over()
            });
            match open.iter_mut().find(|connection| connection.has_room()) {
                Some(connection) => Ok(connection.begin(*request)),
                None => Err(request),
            }
        })
    }

    async fn connect(&self, server: &Uri) -> Result<Connection, BoxError> {
        let name = self.server_name.as_deref().or(server.host());
        let name = name.unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(name.to_owned())?;
        let tcp = self
            .dial
            .clone()
            .oneshot(server.clone())
            .await?
            .into_inner();
        probe_while_idle(&tcp)?;
        // During a handshake, the library keeps at most 64 KiB from the server, which is less than any window.
        let mut memory = self.reserve(self.windows.memory(false, 0))?;
        let tls = limited(self.processor.as_ref(), self.tls.connect(name, tcp)).await?;
        let session = tls.get_ref().1;
        let is_http2 = session.alpn_protocol() == Some(HTTP_2);
        let certificates = session.peer_certificates().unwrap_or_default();
        let certificates: usize = certificates.iter().map(|one| one.len()).sum();
        let needed = self.windows.memory(is_http2, certificates);
        ensure!(memory.resize(needed), Excess::Connections.into());
        let sender = if is_http2 {
            http2(tls, self.windows, self.processor.as_ref())
                .boxed()
                .await?
        } else {
            http1(tls, self.windows, self.processor.as_ref()).await?
        };
        Ok(Connection {
            sender,
            memory: Lent::new(memory),
            is_silent: Arc::default(),
            patience: self.patience,
        })
    }

    /// Reserves memory for a connection.
    fn reserve(&self, bytes: usize) -> Result<Holding, Excess> {
        let mut holding = self.share.holding();
        ensure!(holding.resize(bytes), Excess::Connections);
        Ok(holding)
    }
}

type Call = BoxFuture<'static, Result<Response<Answer>, TrySendError<Request<Body>>>>;

/// Enables TCP keepalive (RFC 9293 section 3.8.4), because HTTP/1.1 has no pings, and a watch can be silent for a long
/// time.
fn probe_while_idle(tcp: &TcpStream) -> io::Result<()> {
    let probes = TcpKeepalive::new()
        .with_time(PING_AFTER)
        .with_interval(PING_DEADLINE)
        .with_retries(PROBES);
    SockRef::from(tcp).set_tcp_keepalive(&probes)
}

/// Limits the processor time of this future, if the API server belongs to a tenant.
fn limited<'a, F>(processor: Option<&Processor>, future: F) -> BoxFuture<'a, F::Output>
where
    F: Future + Send + 'a,
{
    match processor {
        Some(processor) => processor.limited(future).boxed(),
        None => future.boxed(),
    }
}

async fn http1(
    tls: TlsStream<TcpStream>,
    windows: Windows,
    processor: Option<&Processor>,
) -> Result<Sender, BoxError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(usize::try_from(windows.answer)?);
    let (sender, connection) = builder.handshake(TokioIo::new(tls)).await?;
    tokio::spawn(limited(processor, connection));
    Ok(Sender::Http1(sender))
}

async fn http2(
    tls: TlsStream<TcpStream>,
    windows: Windows,
    processor: Option<&Processor>,
) -> Result<Sender, BoxError> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(windows.answer)
        .initial_connection_window_size(windows.connection)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_DEADLINE)
        .keep_alive_while_idle(true);
    let handshake = builder.handshake(TokioIo::new(tls)).boxed();
    let (sender, mut connection) = handshake.await?;
    let allowed = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
    let limit = allowed.clone();
    let connection = poll_fn(move |context| {
        let ended = connection.poll_unpin(context);
        limit.store(connection.current_max_send_streams(), Ordering::Relaxed);
        ended
    });
    tokio::spawn(limited(processor, connection));
    Ok(Sender::Http2 { sender, allowed })
}

struct Connection {
    sender: Sender,
    /// The memory for the connection. Each call borrows it until its response is read.
    memory: Lent<Holding>,
    /// Whether a call was dropped before its response arrived.
    is_silent: Arc<AtomicBool>,
    /// The minimum time without a response after which a dropped call counts.
    patience: Duration,
}

/// A call that waits for its response, with the flag that marks its connection as silent.
///
/// If the call is dropped after it has waited for some time, no other call uses the connection. Therefore other calls
/// do not need to wait until a ping fails.
struct Unanswered {
    is_silent: Option<Arc<AtomicBool>>,
    /// The time at which the response counts as late.
    late: Instant,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(is_silent) = &self.is_silent
            && Instant::now() >= self.late
        {
            is_silent.store(true, Ordering::Relaxed);
        }
    }
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2 {
        sender: http2::SendRequest<Body>,
        /// The API server's limit on concurrent calls (RFC 9113 section 6.5.2).
        allowed: Arc<AtomicUsize>,
    },
}

impl Connection {
    fn is_over(&self) -> bool {
        let is_closed = match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2 { sender, .. } => sender.is_closed(),
        };
        is_closed || self.is_silent.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        let calls = self.memory.loans();
        match &self.sender {
            Sender::Http1(sender) => calls == 0 && sender.is_ready(),
            Sender::Http2 { allowed, .. } => calls < allowed.load(Ordering::Relaxed).min(MAX_CALLS),
        }
    }

    #[expect(
        clippy::result_large_err,
        reason = "hyper's error has the request, which can be sent again"
    )]
    fn begin(&mut self, mut request: Request<Body>) -> Call {
        let call = match &mut self.sender {
            Sender::Http1(sender) => {
                name_host(&mut request);
                sender.try_send_request(request).boxed()
            }
            Sender::Http2 { sender, .. } => sender.try_send_request(request).boxed(),
        };
        let memory = self.memory.lend();
        let mut unanswered = Unanswered {
            is_silent: Some(self.is_silent.clone()),
            late: Instant::now() + self.patience,
        };
        let answer = call.map(move |answer| {
            drop(unanswered.is_silent.take());
            let answer = answer?;
            Ok(answer.map(|body| Answer {
                body,
                _memory: memory,
            }))
        });
        answer.boxed()
    }
}

/// Copies the host into a header, because an HTTP/1.1 request line does not contain the host (RFC 9112 section 3.2).
fn name_host(request: &mut Request<Body>) {
    let uri = request.uri();
    let host = uri.authority().map(|host| host.as_str().parse());
    let path = uri.path_and_query().cloned().map(Uri::from);
    if let Some(Ok(host)) = host {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = path.unwrap_or_default();
}

/// The body of a response.
#[derive(Debug)]
pub(super) struct Answer {
    body: Incoming,
    _memory: Loan<Holding>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

#[cfg(test)]
mod tests;
