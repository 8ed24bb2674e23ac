//! Clients for API servers, which limit responses and do not follow redirects.
//!
//! # Guarantees
//!
//! - A response from an API server uses at most a few megabytes, and takes at most a few minutes.
//! - An error from a server that a tenant chooses contains only the text of a Kubernetes `Status`.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower::util::{AndThenLayer, BoxCloneService, MapErr, MapResponse};
use tower::{BoxError, Service, ServiceBuilder, service_fn};

mod call;
mod connections;
mod decoding;
mod egress;
mod flow;
mod foreign_errors;
mod kubeconfig;
mod lookup;
mod on_behalf;
mod processor;
mod response_limits;
mod retry;
mod server_time;
#[cfg(feature = "testing")]
pub mod testing;

pub use call::CallError;
pub(crate) use call::{
    CALL_DEADLINE, CONTROLLER, PageSize, Pages, call, cause, each_object, in_time, merge, pages,
    post, without_value,
};
pub(crate) use decoding::Decoding;
pub use egress::{EgressPolicy, LocalRange};
pub use kubeconfig::{ClusterAccess, ClusterAccessError, InClusterAccessError};
pub use lookup::addresses_in;
#[cfg(test)]
pub(crate) use on_behalf::caller_of;
pub(crate) use on_behalf::{client_on_behalf_of, on_behalf_of};
pub(crate) use response_limits::{Bounded, Excess, MANAGEMENT_PAGE_SIZE, NamedBy, PAGE_SIZE};

use connections::{Answer, Connections, Dial};
use egress::Dialler;
use foreign_errors::without_foreign_text;
use response_limits::BoundedBody;
pub(crate) use retry::RetryLists;
pub use server_time::ServerTime;

use crate::object_key::ObjectKey;

/// The read timeout. It is longer than the longest pause in a watch, because the API server sends a bookmark every
/// minute.
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// The maximum duration of a watch to request from an API server, as in client-go.
pub(crate) const LONGEST_WATCH: Duration = Duration::from_mins(10);

/// The length of the call buffer, as in kube.
const CALLS_WAITING: usize = 1024;

/// The name of this controller in audit logs.
const USER_AGENT: &str = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));

/// The deadline for a TCP connection to an API server that an operator configured.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// A service that sends calls.
type Calls = BoxCloneService<Request<Body>, Response<Answer>, BoxError>;

/// The part of this namespace's processor time budget that is in use.
#[cfg(test)]
pub(crate) fn taken_processor_time(namespace: &str) -> Duration {
    processor::Processor::of(namespace).missing()
}

/// Creates a client for an operator's `config`, which can contain a proxy. `time` observes the responses.
fn of_operator(config: Config, time: &ServerTime) -> Result<Client, kube::Error> {
    let config = prepared(config);
    if config.proxy_url.is_some() {
        // Here, kube's service sends the calls with HTTP/1.1. The buffer makes it cloneable, which retries require.
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

/// Creates a client that retries requests for list pages.
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

/// Creates a client that connects only to hosts that `egress` allows. The client does not use a proxy, because the
/// addresses to which a proxy connects cannot be checked.
fn of_tenant(
    config: Config,
    egress: EgressPolicy,
    cluster: &ObjectKey,
) -> Result<Client, kube::Error> {
    let dialler = Dialler::new(egress, cluster);
    let dial = move |server| dialler.clone().dial(server);
    let dial = Dial::new(service_fn(dial));
    let namespace = &*cluster.namespace;
    let builder = direct(prepared(config), dial, (NamedBy::Tenant, namespace))?;
    Ok(limited_for_tenant(builder, namespace))
}

/// Creates a client with the limits for a tenant's API server in this namespace.
fn limited_for_tenant<S, B>(builder: ClientBuilder<S>, namespace: &str) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send>
        + Send
        + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant, namespace));
    let filtered = AndThenLayer::new(without_foreign_text::<BoundedBody<B>>);
    builder.with_layer(&bounded).with_layer(&filtered).build()
}

/// Whether cryptography uses AWS-LC's FIPS 140-3 module, which has passed its self-test.
pub fn is_fips() -> bool {
    rustls::crypto::aws_lc_rs::default_provider().fips()
}

/// Creates a service that sends calls to the API server in `config` over connections from `dial`.
fn direct(
    config: Config,
    dial: Dial,
    of: (NamedBy, &str),
) -> Result<ClientBuilder<Calls>, kube::Error> {
    // All callers install the same process-wide provider, so a second installation can fail.
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
    // The client does not retry, because the queue retries a request with the state that the request has at that time.
    config.default_retry = false;
    // Neither conversion can fail: both constants contain only valid header characters.
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), USER_AGENT.parse()) {
        config.headers.push((name, value));
    }
    config
}
