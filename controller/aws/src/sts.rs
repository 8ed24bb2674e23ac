//! The caller: the principal that signed the STS call in the evidence.
//!
//! The controller rebuilds the request and sends it to the STS in the document's region. STS identifies the owner of
//! the credentials, and verifies that the credentials signed this request, which contains the key binding. Evidence for
//! a different key, machine, name or cluster results in a different request, for which STS does not accept the
//! signature.
//!
//! # Guarantees
//!
//! - A node cannot choose a host, path, method, header or body.
//! - Requests that can be rejected without STS are not sent: requests with a different region, a wrong age, or a
//!   signature that was confirmed for a different key.
//! - Evidence that STS has confirmed is not sent again while it is fresh.
//! - Evidence that STS has rejected is not sent again for one minute.
//! - The calls and signatures of one cluster do not block other clusters.
//! - An outage of STS, or of the connection to STS, is never a denial.
//! - No reason, error or `Debug` output contains the session token, the access key ID or the signature.

mod age;
mod answer;
mod client;
mod outage;
mod principal;
mod refusal_cache;
mod replay;
mod request;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;

use std::time::SystemTime;

use hyper::StatusCode;
use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::aws::Proof;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::refusal::{Deferral, NotCalled, Refusal, Unavailable};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::metrics::{CloudResult, Metrics};

pub use self::principal::{InvalidRole, ProfileRole};
pub use self::settings::{InvalidStsSettings, StsSettings};

use self::client::{Client, TrustRoots};
use self::outage::StsOutage;
use self::principal::is_instance;
use self::refusal_cache::Refused;
use self::replay::{LIMITS, Owner, ReplayCache, ReplayCheck};
use crate::denial::AwsDenial;
use crate::document::VerifiedDocument;
use crate::partition::{EndpointHost, Partition, of_region};

/// Verifies callers with STS.
#[derive(Debug)]
pub struct Sts {
    client: Client,
    settings: StsSettings,
    signatures: ReplayCache,
    refused: Refused,
    metrics: Metrics,
    is_asked: bool,
}

impl Sts {
    /// Creates an STS client with these settings.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings are invalid.
    pub fn new(settings: StsSettings) -> Result<Self, InvalidStsSettings> {
        Ok(Self {
            client: settings.client()?,
            settings,
            signatures: ReplayCache::with_limits(LIMITS),
            refused: Refused::default(),
            metrics: Metrics::default(),
            is_asked: true,
        })
    }

    /// Creates a client for an [explanation](node_attestation_core::decide::explain). The client performs only the
    /// checks that do not need STS, and then returns [`NotCalled`].
    ///
    /// # Errors
    ///
    /// Returns an error if TLS cannot be set up.
    pub fn offline() -> Result<Self, InvalidStsSettings> {
        let client = Client::new(Vec::new(), Vec::new(), None);
        Ok(Self {
            client: client.map_err(InvalidStsSettings::Tls)?,
            settings: StsSettings::default(),
            signatures: ReplayCache::with_limits(LIMITS),
            refused: Refused::default(),
            metrics: Metrics::default(),
            is_asked: false,
        })
    }

    /// Counts the calls with these metrics.
    #[must_use]
    pub fn measured_by(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Counts a call.
    fn count(&self, called: &Result<(StatusCode, Vec<u8>), StsOutage>) {
        let result = match called {
            Ok((status, body)) => answer::result(*status, body),
            Err(StsOutage::TimedOut) => CloudResult::TimedOut,
            Err(_) => CloudResult::Failed,
        };
        self.metrics
            .cloud_called(("sts", "GetCallerIdentity"), result);
    }

    /// Returns a verifier for this cluster in this namespace, which uses the cluster's turns and signatures. The tenant
    /// must not be able to choose the name `cluster`.
    pub fn of_cluster<'a>(&'a self, namespace: &str, cluster: &'a str) -> ClusterSts<'a> {
        ClusterSts {
            sts: self,
            cluster,
            line: ObjectKey::new(namespace, cluster),
        }
    }

    /// Returns the STS endpoint of the document's region, which must match the region of the proof.
    fn endpoint(&self, proof: &Proof, document: &VerifiedDocument) -> Result<Endpoint, AwsDenial> {
        let region = document.region.clone();
        if proof.region != region {
            let claimed = proof.region.clone();
            return Err(AwsDenial::CallerRegionMismatch { claimed, region });
        }
        let (Some(partition), Some(public)) = (of_region(&region), EndpointHost::sts(&region))
        else {
            return Err(AwsDenial::RegionUnknown(region));
        };
        let (host, believed) = match self.settings.endpoints.get(&region) {
            Some(host) => (host.clone(), TrustRoots::Own),
            None => (public, TrustRoots::Public),
        };
        Ok(Endpoint {
            host,
            believed,
            partition,
        })
    }
}

/// Verifies callers for one cluster.
#[derive(Debug, Clone)]
pub struct ClusterSts<'a> {
    sts: &'a Sts,
    cluster: &'a str,
    line: ObjectKey,
}

impl ClusterSts<'_> {
    /// Verifies with STS that an instance signed `proof` for `binding`, and checks that it is the instance in
    /// `document`.
    ///
    /// `spki` is the key in the request (DER of its `SubjectPublicKeyInfo`), which `binding` covers. `asked` is the
    /// time of the request, from the API server's clock.
    ///
    /// # Errors
    ///
    /// In the order of the checks: [`AwsDenial::RegionUnknown`], [`AwsDenial::CallerRegionMismatch`], age
    /// ([`EvidenceExpired`](node_attestation_core::refusal::Failure::EvidenceExpired)),
    /// [`AwsDenial::EvidenceReplayed`]; then the result from STS: [`AwsDenial::CallerRefused`], age again, an outage
    /// ([`VerifierUnavailable`](node_attestation_core::refusal::Deferral)); then the caller's identity: `Caller..` of
    /// [`AwsDenial`].
    pub async fn verify(
        self,
        proof: &Proof,
        document: &VerifiedDocument,
        binding: &KeyBinding,
        spki: &[u8],
        asked: SystemTime,
        now: SystemTime,
    ) -> Result<(), Refusal> {
        let Self { sts, cluster, line } = self;
        let endpoint = sts.endpoint(proof, document)?;
        let until = age::fresh_until(&proof.amz_date, asked, now)?;
        let call =
            request::rebuild(proof, binding, &endpoint.host).map_err(StsOutage::unbuildable)?;
        let key = KeyDigest::of(spki);
        let owner = Owner {
            namespace: &line.namespace,
            cluster,
            instance: &document.instance,
        };
        if is_known(sts.signatures.look(&call, &key, owner, now))? {
            return Ok(());
        }
        if let Some(refused) = sts.refused.look(&call, proof, document) {
            return Err(refused.into());
        }
        if !sts.is_asked {
            let not_called = Unavailable::new(NotCalled("STS, and then EC2"));
            return Err(Deferral::VerifierUnavailable(not_called).into());
        }
        let sent = call.request.clone();
        let exchange = sts
            .client
            .exchange(sent, &line, &document.region, endpoint.believed);
        let answer = exchange.await;
        sts.count(&answer);
        let (status, body) = answer?;
        let identity = answer::read(status, &body).inspect_err(|refusal| {
            let namespace = &line.namespace;
            sts.refused
                .remember(namespace, refusal, &call, proof, document);
        })?;
        is_instance(&identity, document, endpoint.partition, &sts.settings.roles)?;
        // STS might have confirmed a different request during the call.
        let seen = sts.signatures.remember(&call, key, owner, until);
        is_known(seen).map(drop)
    }
}

struct Endpoint {
    host: EndpointHost,
    believed: TrustRoots,
    partition: Partition,
}

/// Whether no call to STS is necessary.
fn is_known(seen: ReplayCheck) -> Result<bool, Refusal> {
    match seen {
        ReplayCheck::New => Ok(false),
        ReplayCheck::Confirmed => Ok(true),
        ReplayCheck::AnotherKey => Err(AwsDenial::EvidenceReplayed.into()),
        ReplayCheck::Full => Err(StsOutage::MemoryFull.into()),
    }
}

#[cfg(test)]
mod tests;
