//! Clients of API servers that read no answer without a bound, and follow no redirection.
//!
//! # Guarantees
//!
//! - No answer of an API server takes more than some megabytes, or more than minutes.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

mod call;
mod connections;
mod egress;
mod flow;
mod kubeconfig;
mod response_limits;
mod retry;
mod sieve;
#[cfg(feature = "testing")]
pub mod testing;

pub use call::CallError;
pub(crate) use call::{CALL_DEADLINE, CONTROLLER, call, in_time, merge, post};
pub use egress::{EgressPolicy, LocalRange};
pub use kubeconfig::{ClusterAccess, ClusterAccessError, InClusterAccessError};
pub(crate) use response_limits::{Bounded, Excess, MANAGEMENT_PAGE_SIZE, NamedBy, PAGE_SIZE};

use connections::{Answer, Connections, Dial};
use egress::Dialler;
pub(crate) use retry::RetryLists;

/// Longer than a watch lasts without a word: the API server sends bookmarks each minute.
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// The longest watch that the API server is asked for; client-go's.
pub(crate) const LONGEST_WATCH: Duration = Duration::from_mins(10);

/// Calls that wait to be passed on; more wait where they are made. As many as kube has.
const CALLS_WAITING: usize = 1024;

/// As audit logs name us.
const USER_AGENT: &str = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));

/// For a TCP connection to an API server of the operator's.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// What sends calls.
trait Calls<B>:
    Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S, B> Calls<B> for S where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// A client as `config` has it: an operator's, who may name a proxy.
fn of_operator(config: Config) -> Result<Client, kube::Error> {
    let config = prepared(config);
    if config.proxy_url.is_some() {
        // kube's own, which speaks HTTP/1.1. What is repeated must be a clone, which that is not.
        let shared = BufferLayer::new(CALLS_WAITING);
        let builder = ClientBuilder::try_from(config)?.with_layer(&shared);
        return Ok(repeated(builder));
    }
    let mut dial = HttpConnector::new();
    dial.enforce_http(false);
    dial.set_nodelay(true);
    dial.set_connect_timeout(Some(CONNECT_DEADLINE));
    direct(config, dial, NamedBy::Operator).map(repeated)
}

/// A client that asks for pages of lists again.
fn repeated<S, B>(builder: ClientBuilder<S>) -> Client
where
    S: Calls<B>,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Operator));
    let repeated = RetryLayer::new(RetryLists::default());
    builder.with_layer(&bounded).with_layer(&repeated).build()
}

/// A client that connects to the hosts in `reach`, and by way of no proxy: what a proxy dials
/// cannot be checked here.
fn of_tenant(config: Config, reach: EgressPolicy) -> Result<Client, kube::Error> {
    let dial = Dialler::new(reach);
    let builder = direct(prepared(config), dial, NamedBy::Tenant)?;
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant));
    Ok(builder.with_layer(&bounded).build())
}

/// Calls of the API server of `config` on connections of our own, which `dial` makes.
fn direct<D: Dial>(
    config: Config,
    dial: D,
    named_by: NamedBy,
) -> Result<ClientBuilder<impl Calls<Answer> + use<D>>, kube::Error> {
    // The process' own; who was first does not matter, they are the same.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let tls = config.rustls_client_config()?;
    let server_name = config.tls_server_name.clone();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(Connections::new(dial, tls, server_name, named_by));
    Ok(ClientBuilder::new(service, config.default_namespace))
}

fn prepared(mut config: Config) -> Config {
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // The queue tries again, with the state of the world that there is then.
    config.default_retry = false;
    // Neither can fail: both are constants of the header's alphabet.
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), USER_AGENT.parse()) {
        config.headers.push((name, value));
    }
    config
}
