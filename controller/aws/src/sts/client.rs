//! The HTTPS client: bounded in time, in bytes and in calls at a time, and it follows nothing.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::dial::Dialler;
use super::outage::Outage;

/// For a whole call, waiting for its turn included. STS answers within a second, or not at all; the
/// queue tries again.
const DEADLINE: Duration = Duration::from_secs(10);

/// An identity is a third of a kilobyte, and the longest error a few.
const MAX_ANSWER: usize = 16 * 1024;

/// Calls at a time to the STS of one region, so that one that hangs holds up its own alone.
pub(super) const MAX_CALLS: usize = 32;

/// Calls of one cluster at a time to the STS of one region; its others wait before the common line,
/// so that the line is short for everybody else.
pub(super) const MAX_CALLS_OF_CLUSTER: usize = 8;

/// So many clusters and regions are remembered that have no call under way.
const MAX_IDLE: usize = 1024;

/// Shorter than load balancers keep theirs, so that none is cut under a call.
const IDLE: Duration = Duration::from_secs(20);

type Connections = HttpClient<HttpsConnector<Dialler>, Full<Bytes>>;

/// Whose certificates an endpoint's chain may end in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrustRoots {
    /// The system's authorities.
    Public,
    /// Those, and the operator's own.
    Own,
}

/// The client.
pub(super) struct Client {
    public: Connections,
    own: Connections,
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Of each cluster and region.
    shares: Mutex<HashMap<(String, String), Arc<Semaphore>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// A client that believes `system`, and for endpoints of the operator's `own` too.
    pub(super) fn new(
        system: Vec<CertificateDer<'static>>,
        own: Vec<CertificateDer<'static>>,
        dialler: &Dialler,
    ) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        // Of the system's, those that cannot be read are passed over, as other programs do.
        roots.add_parsable_certificates(system);
        let mut with_own = roots.clone();
        for certificate in own {
            with_own.add(certificate)?;
        }
        Ok(Self {
            public: connections(roots, dialler.clone())?,
            own: connections(with_own, dialler.clone())?,
            turns: Mutex::default(),
            shares: Mutex::default(),
        })
    }

    /// Sends `request` for this cluster, and reads the whole answer.
    ///
    /// # Errors
    ///
    /// There is none in time, or none that could be one of STS.
    pub(super) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        cluster: &str,
        region: &str,
        believed: TrustRoots,
    ) -> Result<(StatusCode, Bytes), Outage> {
        let of_cluster = (cluster.to_owned(), region.to_owned());
        let share = semaphore(&self.shares, of_cluster, MAX_CALLS_OF_CLUSTER);
        let turns = semaphore(&self.turns, region.to_owned(), MAX_CALLS);
        timeout(DEADLINE, async {
            let _share = share.acquire().await.map_err(|_| Outage::Busy)?;
            let _turn = turns.acquire().await.map_err(|_| Outage::Busy)?;
            let connections = match believed {
                TrustRoots::Public => &self.public,
                TrustRoots::Own => &self.own,
            };
            let response = connections.request(request).await;
            let response = response.map_err(|source| Outage::Unreachable(source.into()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER);
            let body = body.collect().await.map_err(|source| {
                if source.is::<LengthLimitError>() {
                    Outage::TooLarge
                } else {
                    Outage::Cut(source)
                }
            })?;
            Ok((status, body.to_bytes()))
        })
        .await
        .unwrap_or(Err(Outage::TimedOut))
    }
}

/// The semaphore of this key; at the limit, those that nobody has are forgotten.
fn semaphore<K: Eq + Hash>(
    semaphores: &Mutex<HashMap<K, Arc<Semaphore>>>,
    key: K,
    permits: usize,
) -> Arc<Semaphore> {
    let mut semaphores = semaphores.lock().unwrap_or_else(PoisonError::into_inner);
    if semaphores.len() >= MAX_IDLE {
        semaphores.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
    }
    let made = || Arc::new(Semaphore::new(permits));
    semaphores.entry(key).or_insert_with(made).clone()
}

fn connections(roots: RootCertStore, dialler: Dialler) -> Result<Connections, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only()
        .enable_http1()
        .wrap_connector(dialler);
    Ok(HttpClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_CALLS)
        .build(https))
}
