//! What is known of the cluster whose requests are decided about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_attestation::names::{Audience, Provider, ProviderId};

use crate::crd::conditions::Report;
use crate::duties::{Duties, Enforcement, Issuance};
use crate::identifiers::ServingName;
use crate::inventory::Inventory;
use crate::ledger::Ledger;
use crate::refusal::Unavailable;
use crate::request;
use crate::serving::ServingPolicy;
use crate::verifier::Verifier;

/// All that a decision needs to know about one workload cluster.
#[derive(Debug, Clone)]
pub struct Context {
    /// Who appraises evidence, one verifier a provider that the cluster admits.
    pub verifiers: Verifiers,
    /// The audiences that mean this cluster.
    pub audiences: Vec<Audience>,
    /// Its machines.
    pub inventory: Arc<dyn Inventory>,
    /// Who holds its node names.
    pub ledger: Arc<dyn Ledger>,
    /// Who signs.
    pub issuance: Issuance,
    /// How long certificates are valid.
    pub lifetimes: Lifetimes,
    /// Which requests are ours beside those to the client signers of the verifiers.
    pub duties: Duties,
    /// Whether nodes without a record are kept from Kubernetes' own signers.
    pub enforcement: Enforcement,
    /// What serving certificates may be for.
    pub serving: ServingPolicy,
}

impl Context {
    /// The signers whose requests are ours to answer: what must be watched.
    pub fn signers(&self) -> Vec<String> {
        request::signers(&self.verifiers, self.duties)
    }
}

/// The verifiers of a cluster, one for each provider that it admits.
#[derive(Debug, Clone, Default)]
pub struct Verifiers(BTreeMap<Provider, Arc<dyn Verifier>>);

impl Verifiers {
    /// The verifier of this provider.
    pub fn of(&self, provider: &Provider) -> Option<&dyn Verifier> {
        self.0.get(provider).map(AsRef::as_ref)
    }

    /// The providers that are admitted.
    pub fn providers(&self) -> impl Iterator<Item = &Provider> {
        self.0.keys()
    }

    /// The names and addresses that the platforms report of the machine with this provider ID; `None`
    /// where none of them has a say.
    pub(crate) async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        let mut names = None;
        for verifier in self.0.values() {
            if let Some(reported) = verifier.serving_names(provider_id).await? {
                names.get_or_insert_with(Vec::new).extend(reported);
            }
        }
        Ok(names)
    }

    /// What they have to say of their cluster.
    pub fn reports(&self) -> impl Iterator<Item = Report> {
        self.0.values().flat_map(|verifier| verifier.reports())
    }
}

impl FromIterator<Arc<dyn Verifier>> for Verifiers {
    fn from_iter<T: IntoIterator<Item = Arc<dyn Verifier>>>(verifiers: T) -> Self {
        Self(
            verifiers
                .into_iter()
                .map(|verifier| (verifier.provider().clone(), verifier))
                .collect(),
        )
    }
}

/// The longest validity that is granted; a longer one that is asked for is cut to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// For a machine that proved what it is.
    pub attested: Duration,
    /// For one that cannot: it is never renewed.
    pub insecure: Duration,
}

impl Lifetimes {
    /// The longer of them.
    pub fn longest(&self) -> Duration {
        self.attested.max(self.insecure)
    }

    /// The same, but none beyond `end`.
    pub(super) fn until(self, end: SystemTime, now: SystemTime) -> Self {
        let left = end.duration_since(now).unwrap_or_default();
        Self {
            attested: self.attested.min(left),
            insecure: self.insecure.min(left),
        }
    }
}

impl Default for Lifetimes {
    /// Seven days, and for an unattested machine one year.
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self {
            attested: 7 * DAY,
            insecure: 365 * DAY,
        }
    }
}
