//! Clients of API servers that read no answer without a bound, and follow no redirection.
//!
//! # Guarantees
//!
//! - No answer of an API server takes more than some megabytes, or more than minutes.

use std::time::Duration;

use futures::future::FutureExt;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

mod call;
mod egress;
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

use egress::Dialler;
pub(crate) use retry::RetryLists;

/// Longer than a watch lasts without a word: the API server sends bookmarks each minute.
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// Calls that wait to be passed on; more wait where they are made. As many as kube has.
const CALLS_WAITING: usize = 1024;

/// As audit logs name us.
const USER_AGENT: &str = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));

/// For a connection with its TLS handshake; as long as kube waits for one.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(30);

/// A client as `config` has it: an operator's, who may name a proxy.
fn of_operator(config: Config) -> Result<Client, kube::Error> {
    let builder = ClientBuilder::try_from(prepared(config))?;
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Operator));
    let retried = RetryLayer::new(RetryLists::default());
    // What is repeated must be a clone, which the client below is not.
    let shared = BufferLayer::new(CALLS_WAITING);
    let builder = builder.with_layer(&bounded).with_layer(&shared);
    Ok(builder.with_layer(&retried).build())
}

/// A client that connects to the hosts in `reach`, and by way of no proxy: what a proxy dials
/// cannot be checked here.
fn of_tenant(config: Config, reach: EgressPolicy) -> Result<Client, kube::Error> {
    // The process' own; who was first does not matter, they are the same.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let config = prepared(config);
    let https = config.rustls_https_connector_with_connector(Dialler(reach))?;
    let https = ServiceBuilder::new()
        .map_future(FutureExt::boxed)
        .timeout(HANDSHAKE_DEADLINE)
        .service(https);
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    let builder = ClientBuilder::new(service, config.default_namespace);
    let bounded = layer_fn(|service| Bounded::new(service, NamedBy::Tenant));
    Ok(builder.with_layer(&bounded).build())
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
