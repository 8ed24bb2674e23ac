//! The HTTPS client. It limits time, bytes and concurrent calls, and does not follow redirects.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Request, StatusCode};
use kubelet_attestation::ensure;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::shared::{Lock, Shared, Swept};
use node_attestation_runtime::turns::{FairTurns, Line, TurnLimits};
use reqwest::{Proxy, redirect};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use super::outage::StsOutage;
use crate::proxy::{Names, caused_by};

/// The deadline for a whole call, including the wait for its turn. STS usually responds within one second or not at
/// all, and the queue retries.
const DEADLINE: Duration = Duration::from_secs(10);

/// The maximum length of a response, in bytes. A successful response is about 350 bytes long, and the longest error is
/// a few kilobytes long.
const MAX_ANSWER: usize = 16 * 1024;

/// The limits on concurrent calls to the STS in one region. If a region hangs, only its own calls are delayed.
pub(super) const CALLS: TurnLimits = TurnLimits {
    all: 32,
    of_cluster: 8,
};

/// The deadline for a connection, including an attempt with a second address of the name.
const CONNECT_DEADLINE: Duration = Duration::from_secs(4);

/// The time after which an idle connection is closed. It is shorter than the idle timeout of load balancers, which
/// could otherwise close a connection during a call.
const IDLE: Duration = Duration::from_secs(20);

/// The controller's name and version, for AWS `CloudTrail`. The signature does not cover it.
const USER_AGENT: &str = concat!("node-attestation-controller/", env!("CARGO_PKG_VERSION"));

/// The trust anchors for an endpoint's certificate chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrustRoots {
    /// The system's CA certificates.
    Public,
    /// The system's CA certificates, and the operator's CA certificates.
    Own,
}

/// The HTTPS client.
#[derive(derive_more::Debug)]
#[debug("Client")]
pub(super) struct Client {
    public: reqwest::Client,
    own: reqwest::Client,
    /// The turns for each region.
    turns: Shared<Swept<String, FairTurns>>,
}

// Not derived: the `Debug` output of reqwest's client would contain the proxy, including its password.

impl Client {
    /// Creates a client that trusts `system` and, for the operator's endpoints, also `own`. If `proxy` is set, the
    /// client connects through it.
    pub(super) fn new(
        system: Vec<CertificateDer<'static>>,
        own: Vec<CertificateDer<'static>>,
        proxy: Option<&Proxy>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut roots = RootCertStore::empty();
        // System certificates that cannot be parsed are ignored, as in other programs.
        roots.add_parsable_certificates(system);
        let mut with_own = roots.clone();
        for certificate in own {
            with_own.add(certificate)?;
        }
        Ok(Self {
            public: connections(roots, proxy)?,
            own: connections(with_own, proxy)?,
            turns: Shared::new(Lock::StsTurns, Swept::default()),
        })
    }

    /// Sends `request` for this cluster, and reads the complete response.
    ///
    /// # Errors
    ///
    /// Returns an error if the response does not arrive in time, or cannot come from STS.
    pub(super) async fn exchange(
        &self,
        request: Request<&'static str>,
        cluster: &ObjectKey,
        region: &str,
        believed: TrustRoots,
    ) -> Result<(StatusCode, Vec<u8>), StsOutage> {
        let request = request.try_into().map_err(StsOutage::unbuildable)?;
        let line = self.line(cluster, region);
        timeout(DEADLINE, async {
            let _turn = line.turn().await;
            let connections = match believed {
                TrustRoots::Public => &self.public,
                TrustRoots::Own => &self.own,
            };
            let answer = caused_by(&cluster.namespace, connections.execute(request)).await;
            let mut answer = answer.map_err(StsOutage::unreachable)?;
            let mut body = Vec::new();
            while let Some(chunk) = answer.chunk().await.map_err(StsOutage::Cut)? {
                ensure!(body.len() + chunk.len() <= MAX_ANSWER, StsOutage::TooLarge);
                body.extend(chunk);
            }
            Ok((answer.status(), body))
        })
        .await
        .unwrap_or(Err(StsOutage::TimedOut))
    }

    /// Returns the cluster's queue for a region. Regions without calls are removed.
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

#[cfg(test)]
mod tests {
    use node_attestation_runtime::shared::testing::most_visited;

    use super::*;

    #[test]
    fn creation_of_a_call_queue_visits_few_of_many_regions() {
        let client = Client::new(Vec::new(), Vec::new(), None).unwrap();
        let cluster = ObjectKey::new("tenant-a", "one");
        let line = |number: usize| client.line(&cluster, &number.to_string());
        let lines: Vec<Line> = (0..1000).map(line).collect();

        let visited = most_visited(|| drop(line(lines.len())));

        assert!(visited[&Lock::StsTurns] < 10, "{visited:?}");
    }
}
