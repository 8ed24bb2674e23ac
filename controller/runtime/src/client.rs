//! Clients of API servers, with bounded answers and without redirections.
//!
//! # Guarantees
//!
//! - No answer of an API server takes more than some megabytes, or more than minutes.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower::util::{BoxCloneService, MapErr, MapResponse};
use tower::{BoxError, Service, ServiceBuilder, service_fn};

mod call;
mod connections;
mod egress;
mod flow;
mod kubeconfig;
mod lookup;
mod response_limits;
mod retry;
mod server_time;
#[cfg(feature = "testing")]
pub mod testing;

pub use call::CallError;
pub(crate) use call::{CALL_DEADLINE, CONTROLLER, call, cause, in_time, merge, pages, post};
pub use egress::{EgressPolicy, LocalRange};
pub use kubeconfig::{ClusterAccess, ClusterAccessError, InClusterAccessError};
pub use lookup::addresses;
pub(crate) use response_limits::{Bounded, Excess, MANAGEMENT_PAGE_SIZE, NamedBy, PAGE_SIZE};

use connections::{Answer, Connections, Dial};
use egress::Dialler;
pub(crate) use retry::RetryLists;
pub use server_time::ServerTime;

use crate::object_key::ObjectKey;

/// Longer than the silence of a watch: the API server sends a bookmark each minute.
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// The longest watch that the API server is asked for, as in client-go.
pub(crate) const LONGEST_WATCH: Duration = Duration::from_mins(10);

/// The length of the buffer of calls, as in kube.
const CALLS_WAITING: usize = 1024;

/// The name of this controller in audit logs.
const USER_AGENT: &str = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));

/// Deadline of a TCP connection to an API server that the operator configured.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// A service that sends calls.
type Calls = BoxCloneService<Request<Body>, Response<Answer>, BoxError>;

/// A client of an operator's `config`, which may have a proxy. `time` is heard of its answers.
fn of_operator(config: Config, time: &ServerTime) -> Result<Client, kube::Error> {
    let config = prepared(config);
    if config.proxy_url.is_some() {
        // kube's own service, which speaks HTTP/1.1. The retries need one that can be cloned.
        let shared = BufferLayer::new(CALLS_WAITING);
        let builder = ClientBuilder::try_from(config)?.with_layer(&shared);
        return Ok(repeated(builder, time));
    }
    let mut connector = lookup::connector();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_DEADLINE));
    let dial = Dial::new(MapErr::new(connector, BoxError::from));
    direct(config, dial, (NamedBy::Operator, "")).map(|builder| repeated(builder, time))
}

/// A client that retries calls for pages of lists.
fn repeated<S, B>(builder: ClientBuilder<S>, time: &ServerTime) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let heard = layer_fn(|service| {
        let time = time.clone();
        MapResponse::new(service, move |response: Response<B>| {
            time.heard(response.headers());
            response
        })
    });
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Operator, ""));
    let repeated = RetryLayer::new(RetryLists::default());
    builder
        .with_layer(&heard)
        .with_layer(&bounded)
        .with_layer(&repeated)
        .build()
}

/// A client that connects to the hosts in `reach`, without a proxy: the addresses that a proxy dials cannot be
/// checked.
fn of_tenant(
    config: Config,
    reach: EgressPolicy,
    cluster: &ObjectKey,
) -> Result<Client, kube::Error> {
    let dialler = Dialler::new(reach, cluster);
    let dial = move |server| dialler.clone().dial(server);
    let dial = Dial::new(service_fn(dial));
    let namespace = &*cluster.namespace;
    let builder = direct(prepared(config), dial, (NamedBy::Tenant, namespace))?;
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant, namespace));
    Ok(builder.with_layer(&bounded).build())
}

/// Whether cryptography is that of AWS-LC's module for FIPS 140-3, which has tested itself.
pub fn is_fips() -> bool {
    rustls::crypto::aws_lc_rs::default_provider().fips()
}

/// Calls of the API server of `config` on the connections that `dial` makes.
fn direct(
    config: Config,
    dial: Dial,
    of: (NamedBy, &str),
) -> Result<ClientBuilder<Calls>, kube::Error> {
    // All callers install the same provider for the process.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let tls = config.rustls_client_config()?;
    let server_name = config.tls_server_name.clone();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(Connections::service(dial, tls, server_name, of));
    let calls = Calls::new(service);
    Ok(ClientBuilder::new(calls, config.default_namespace))
}

fn prepared(mut config: Config) -> Config {
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // The queue retries, with the state of that time.
    config.default_retry = false;
    // Neither can fail: both are constants of the header's alphabet.
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), USER_AGENT.parse()) {
        config.headers.push((name, value));
    }
    config
}
