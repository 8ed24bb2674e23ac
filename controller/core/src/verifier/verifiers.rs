//! The verifiers of one cluster.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use futures::future::BoxFuture;
use kubelet_attestation::names::{Provider, ProviderId};

use super::{Findings, Verifier, VerifierUnavailable};
use crate::crd::conditions::{ATTESTORS_AVAILABLE, ConditionReport, ConditionStatus, reason};
use crate::identifiers::ServingName;
use crate::refusal::{Deferral, Denial, Unavailable};

/// The verifiers of a cluster, one for each authorized attestation provider. While a provider's verifier is
/// unavailable, requests to the provider's signers wait.
#[derive(Debug, Clone, Default)]
pub struct Verifiers {
    available: BTreeMap<Provider, Arc<dyn Verifier>>,
    unavailable: Vec<VerifierUnavailable>,
    settings: Option<ParsedSettings>,
}

/// The parsed settings for a cluster's providers.
pub type ParsedSettings = Arc<dyn Any + Send + Sync>;

impl Verifiers {
    /// Returns the verifiers together with the settings from which they were created. The settings can be valid or
    /// rejected.
    #[must_use]
    pub fn with_settings(self, settings: ParsedSettings) -> Self {
        Self {
            settings: Some(settings),
            ..self
        }
    }

    /// The parsed settings. The caller keeps the settings until it creates the next verifiers, even if it does not use
    /// the current verifiers. Therefore the settings are parsed again only after a change.
    pub fn settings(&self) -> Option<&ParsedSettings> {
        self.settings.as_ref()
    }

    /// The verifier for this provider, if it is available.
    pub fn of(&self, provider: &Provider) -> Option<&Arc<dyn Verifier>> {
        self.available.get(provider)
    }

    /// The authorized providers, including providers with an unavailable verifier.
    pub fn providers(&self) -> BTreeSet<Provider> {
        let unavailable = self.unavailable.iter();
        let unavailable = unavailable.filter_map(VerifierUnavailable::provider);
        unavailable.chain(self.available.keys().cloned()).collect()
    }

    /// Whether this provider is authorized.
    pub(crate) fn admits(&self, provider: &Provider) -> bool {
        self.available.contains_key(provider) || self.is_available(provider).is_err()
    }

    /// The available verifiers.
    pub(crate) fn available(&self) -> Self {
        Self {
            available: self.available.clone(),
            unavailable: Vec::new(),
            settings: self.settings.clone(),
        }
    }

    /// Whether every available verifier appraises evidence. While a verifier is unavailable, its requests wait.
    pub fn need_evidence(&self) -> bool {
        let mut verifiers = self.available.values();
        verifiers.all(|verifier| !verifier.versions().is_empty())
    }

    /// Returns an error if this provider's verifier is unavailable, so that requests to the provider's signers wait.
    pub(crate) fn is_available(&self, provider: &Provider) -> Result<(), Deferral> {
        let mut unavailable = self.unavailable.iter();
        let why = unavailable.find(|why| why.attestor() == provider.as_str());
        why.map_or(Ok(()), |why| Err(why.into()))
    }

    /// The reason why the first authorized provider is unavailable, if no provider is available.
    pub fn none_available(&self) -> Option<&VerifierUnavailable> {
        let first = self.unavailable.first();
        first.filter(|_| self.available.is_empty())
    }

    /// The names of all reasons for which a request can be denied, for each provider.
    pub fn denials(&self) -> impl Iterator<Item = (&Provider, &'static str)> {
        self.available.iter().flat_map(|(provider, verifier)| {
            let all = Denial::CATALOGUE.iter().copied().chain(verifier.denials());
            all.map(move |reason| (provider, reason.name))
        })
    }

    /// Returns the names and addresses that the platforms report for the machine with this provider ID. `None` if no
    /// platform reports any. `attestor` is the attestation provider in the machine's record.
    pub(crate) async fn serving_names(
        &self,
        provider_id: &ProviderId,
        attestor: &Provider,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        let mut names = None;
        for verifier in self.available.values() {
            if let Some(reported) = verifier.serving_names(provider_id).await? {
                names.get_or_insert_with(Vec::new).extend(reported);
            }
        }
        if names.is_none() {
            let scheme = provider_id.as_str().split_once("://");
            let may_report = |why: &&VerifierUnavailable| {
                why.attestor() == attestor.as_str()
                    || scheme.is_some_and(|(scheme, _)| scheme == why.attestor())
            };
            // Without this error, the controller would use the node's own report, although the platform might report
            // names.
            if let Some(why) = self.unavailable.iter().find(may_report) {
                return Err(Unavailable::new(why.clone()));
            }
        }
        Ok(names)
    }

    /// The background work of the verifiers. This work never ends.
    pub fn background(&self) -> impl Iterator<Item = BoxFuture<'static, ()>> {
        let verifiers = self.available.values();
        verifiers.filter_map(|verifier| verifier.background())
    }

    /// The verifiers' conditions for the cluster.
    pub fn reports(&self) -> impl Iterator<Item = ConditionReport> {
        let verifiers = self.available.values();
        let reports = verifiers.flat_map(|verifier| verifier.reports());
        [self.availability()].into_iter().chain(reports)
    }

    /// The verifiers' findings about the machines of the cluster, up to `now`.
    pub fn findings(&self, now: SystemTime) -> Findings {
        let verifiers = self.available.values();
        let findings = verifiers.map(|verifier| verifier.findings(now));
        findings.fold(Findings::default(), Findings::and)
    }

    /// The condition about the availability of all authorized providers.
    pub fn availability(&self) -> ConditionReport {
        let unavailable: Vec<_> = self.unavailable.iter().map(ToString::to_string).collect();
        let Some(first) = self.unavailable.first() else {
            return ConditionReport {
                of: ATTESTORS_AVAILABLE,
                holds: ConditionStatus::True,
                reason: reason::ALL_AVAILABLE,
                message: String::new(),
            };
        };
        ConditionReport {
            of: ATTESTORS_AVAILABLE,
            holds: ConditionStatus::False,
            reason: first.reason(),
            message: format!(
                "{}. Requests to the signers of these attestors wait; requests to other signers are answered",
                unavailable.join("; ")
            ),
        }
    }

    /// Returns the verifiers after applying `replace` to each available verifier.
    #[must_use]
    pub fn map(self, replace: impl Fn(Arc<dyn Verifier>) -> Arc<dyn Verifier>) -> Self {
        let available = self.available.into_values().map(replace);
        Self {
            unavailable: self.unavailable,
            settings: self.settings,
            ..available.collect()
        }
    }
}

impl FromIterator<Arc<dyn Verifier>> for Verifiers {
    fn from_iter<T: IntoIterator<Item = Arc<dyn Verifier>>>(verifiers: T) -> Self {
        verifiers.into_iter().map(Ok).collect()
    }
}

impl FromIterator<Result<Arc<dyn Verifier>, VerifierUnavailable>> for Verifiers {
    fn from_iter<T>(verifiers: T) -> Self
    where
        T: IntoIterator<Item = Result<Arc<dyn Verifier>, VerifierUnavailable>>,
    {
        let mut all = Self::default();
        for verifier in verifiers {
            match verifier {
                Ok(verifier) => {
                    all.available.insert(verifier.provider().clone(), verifier);
                }
                Err(why) => all.unavailable.push(why),
            }
        }
        all
    }
}
