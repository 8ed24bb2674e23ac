//! Connections to STS, by way of the operator's proxy where there is one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// For a connection, a second address of the name included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(4);

/// A proxy for HTTPS, as the environment of the manager names it.
///
/// The proxy learns a host's name and carries what TLS protects; it is the operator's choice alone.
#[derive(Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "two variables of the environment"
)]
pub struct Proxy {
    /// `HTTPS_PROXY`. It may hold a password.
    pub https: Option<String>,
    /// `NO_PROXY`.
    pub no: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("https", &self.https.is_some())
            .field("no", &self.no)
            .finish()
    }
}

/// The proxy's URL is not one that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("HTTPS_PROXY is no proxy that speaks plain HTTP: http://[user:password@]host[:port]")]
pub struct InvalidProxy;

/// Connects to a host, or to the proxy that leads there.
#[derive(Debug, Clone)]
pub(super) struct Dialler {
    direct: HttpConnector,
    proxy: Option<Arc<Matcher>>,
}

impl Dialler {
    pub(super) fn new(proxy: &Proxy) -> Result<Self, InvalidProxy> {
        let mut direct = HttpConnector::new();
        // The scheme is that of TLS, which is done above this.
        direct.enforce_http(false);
        direct.set_nodelay(true);
        direct.set_connect_timeout(Some(CONNECT_DEADLINE));
        let https = proxy.https.as_deref().filter(|https| !https.is_empty());
        let proxy = https
            .map(|https| matcher(https, proxy.no.as_deref().unwrap_or_default()))
            .transpose()?;
        Ok(Self { direct, proxy })
    }
}

fn matcher(https: &str, no: &str) -> Result<Arc<Matcher>, InvalidProxy> {
    let address = https.strip_prefix("http://").unwrap_or(https);
    if address.contains("://") {
        return Err(InvalidProxy);
    }
    let matcher = Matcher::builder().https(https).no("").build();
    let anywhere = Uri::from_static("https://sts.invalid");
    matcher.intercept(&anywhere).ok_or(InvalidProxy)?;
    Ok(Arc::new(Matcher::builder().https(https).no(no).build()))
}

impl Service<Uri> for Dialler {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, host: Uri) -> Self::Future {
        let mut direct = self.direct.clone();
        let proxy = self.proxy.as_ref();
        let Some(intercept) = proxy.and_then(|proxy| proxy.intercept(&host)) else {
            return Box::pin(async move { Ok(direct.call(host).await?) });
        };
        let mut tunnel = Tunnel::new(intercept.uri().clone(), direct);
        if let Some(auth) = intercept.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        Box::pin(async move { Ok(tunnel.call(host).await?) })
    }
}
