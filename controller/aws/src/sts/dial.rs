//! Connections to STS, by way of the operator's proxy where there is one.

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

use crate::proxy::{InvalidProxy, Proxy};

/// For a connection, a second address of the name included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(4);

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
        let proxy = proxy.matcher()?.map(Arc::new);
        Ok(Self { direct, proxy })
    }
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
