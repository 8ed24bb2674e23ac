//! The verifiers of one cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubelet_attestation::names::{Provider, ProviderId};

use super::Verifier;
use crate::crd::conditions::ConditionReport;
use crate::identifiers::ServingName;
use crate::refusal::{Denial, Unavailable};

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

    /// Each provider with the names of all reasons for which its requests can be denied.
    pub fn denials(&self) -> impl Iterator<Item = (&Provider, &'static str)> {
        self.0.iter().flat_map(|(provider, verifier)| {
            let all = Denial::CATALOGUE.iter().chain(verifier.denials());
            all.map(move |reason| (provider, reason.name))
        })
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

    /// Their reports about the cluster, for its conditions.
    pub fn reports(&self) -> impl Iterator<Item = ConditionReport> {
        self.0.values().flat_map(|verifier| verifier.reports())
    }
}

impl IntoIterator for Verifiers {
    type Item = Arc<dyn Verifier>;
    type IntoIter = std::collections::btree_map::IntoValues<Provider, Arc<dyn Verifier>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_values()
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
