//! The HTTPS client: bounded in time, in bytes and in calls at a time, and it follows nothing.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Request, StatusCode};
use kubelet_attestation::ensure;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{Shared, Swept};
use node_attestation_runtime::turns::{FairTurns, Line, TurnLimits};
use reqwest::{Proxy, redirect};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use super::outage::Outage;
use crate::proxy::Names;

/// For a whole call, waiting for its turn included. STS answers within a second, or not at all; the
/// queue tries again.
const DEADLINE: Duration = Duration::from_secs(10);

/// An identity is a third of a kilobyte, and the longest error a few.
const MAX_ANSWER: usize = 16 * 1024;

/// Calls at a time to the STS of one region, so that one that hangs holds up its own alone.
pub(super) const CALLS: TurnLimits = TurnLimits {
    all: 32,
    of_cluster: 8,
};

/// For a connection, a second address of the name included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(4);

/// Shorter than load balancers keep theirs, so that none is cut under a call.
const IDLE: Duration = Duration::from_secs(20);

/// The name and the version of the controller, for the log of AWS `CloudTrail`. No signature covers it.
const USER_AGENT: &str = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));

/// The trust anchors of an endpoint's chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrustRoots {
    /// The system's authorities.
    Public,
    /// Those, and the operator's own.
    Own,
}

/// The client.
#[derive(derive_more::Debug)]
#[debug("Client")]
pub(super) struct Client {
    public: reqwest::Client,
    own: reqwest::Client,
    /// By region.
    turns: Shared<Swept<String, FairTurns>>,
}

// The client's own shows the proxy, with its password.

impl Client {
    /// A client that believes `system`, and for endpoints of the operator's `own` too. It goes by way
    /// of `proxy`, where there is one.
    pub(super) fn new(
        system: Vec<CertificateDer<'static>>,
        own: Vec<CertificateDer<'static>>,
        proxy: Option<&Proxy>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut roots = RootCertStore::empty();
        // Of the system's, those that cannot be read are passed over, as other programs do.
        roots.add_parsable_certificates(system);
        let mut with_own = roots.clone();
        for certificate in own {
            with_own.add(certificate)?;
        }
        Ok(Self {
            public: connections(roots, proxy)?,
            own: connections(with_own, proxy)?,
            turns: Shared::new("turns of STS calls", Swept::default()),
        })
    }

    /// Sends `request` for this cluster, and reads the whole answer.
    ///
    /// # Errors
    ///
    /// There is none in time, or none that could be one of STS.
    pub(super) async fn exchange(
        &self,
        request: Request<&'static str>,
        cluster: &ObjectKey,
        region: &str,
        believed: TrustRoots,
    ) -> Result<(StatusCode, Vec<u8>), Outage> {
        let request = request.try_into().map_err(Outage::unbuildable)?;
        let line = self.line(cluster, region);
        timeout(DEADLINE, async {
            let _turn = line.turn().await;
            let connections = match believed {
                TrustRoots::Public => &self.public,
                TrustRoots::Own => &self.own,
            };
            let answer = connections.execute(request).await;
            let mut answer = answer.map_err(Outage::unreachable)?;
            let mut body = Vec::new();
            while let Some(chunk) = answer.chunk().await.map_err(Outage::Cut)? {
                ensure!(body.len() + chunk.len() <= MAX_ANSWER, Outage::TooLarge);
                body.extend(chunk);
            }
            Ok((answer.status(), body))
        })
        .await
        .unwrap_or(Err(Outage::TimedOut))
    }

    /// The cluster's line in a region. Regions that nobody calls are forgotten.
    fn line(&self, cluster: &ObjectKey, region: &str) -> Line {
        let is_idle = |_: &_, turns: &mut FairTurns| turns.is_idle();
        let new = || FairTurns::new(CALLS);
        self.turns.write(|turns| {
            let turns = turns.get_or_insert_with(region.to_owned(), is_idle, new);
            turns.line(cluster)
        })
    }
}

fn connections(
    roots: RootCertStore,
    proxy: Option<&Proxy>,
) -> Result<reqwest::Client, Box<dyn Error + Send + Sync>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .tls_backend_preconfigured(tls)
        .https_only(true)
        .http1_only()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_DEADLINE)
        .dns_resolver(Arc::new(Names))
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(CALLS.all);
    let client = match proxy {
        Some(proxy) => client.proxy(proxy.clone()),
        None => client.no_proxy(),
    };
    Ok(client.build()?)
}
