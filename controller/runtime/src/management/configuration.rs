//! The configuration of one cluster, which determines the decisions on its requests.
//!
//! The controller with a management cluster, the controller without one, and the command `explain` create the
//! configuration with the same checks.

use std::collections::BTreeSet;
use std::sync::Arc;

use kubelet_attestation::names::Audience;
use node_attestation_core::crd::KubeletAuthenticationSpec;
use node_attestation_core::decide::Context;
use node_attestation_core::inventory::Inventory;
use node_attestation_core::ledger::{Absences, RecordLedger, Records, Revocations};
use node_attestation_core::log_lines::LogLines;
use node_attestation_core::nodes::Nodes;
use node_attestation_core::serving::{AddressRange, InvalidAddressRange, NodeReportedAddresses};
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::Verifiers;

use super::spec_mapping::{enforcement, ledger_policy, serving_policy};
use crate::capi::Cluster;
use crate::settings_file::{Contradiction, check_stored};

/// The parsed values of a valid `spec`.
#[derive(Debug, Clone)]
pub(crate) struct CheckedSpec {
    /// The audiences in addition to the audiences of the cluster's CAs.
    audiences: Vec<Audience>,
    serving_address_ranges: Vec<AddressRange>,
}

/// The reason why a `spec` cannot be used. An earlier schema might have accepted it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidSpec {
    #[error(transparent)]
    Audience(#[from] InvalidAudience),
    #[error(transparent)]
    Combination(#[from] Contradiction),
    #[error(transparent)]
    ServingAddressRange(#[from] InvalidServingAddressRange),
}

/// This entry of `spec.audiences` is not an audience.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("spec.audiences: {0:?} is not an audience")]
pub(crate) struct InvalidAudience(pub(crate) String);

/// An entry of `spec.servingAddressRanges` is not a valid range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.servingAddressRanges: {text:?} is invalid: {why}. Until it is corrected, the controller does not \
     answer requests from the Cluster"
)]
pub(crate) struct InvalidServingAddressRange {
    text: String,
    why: InvalidAddressRange,
}

impl CheckedSpec {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// Returns the first invalid setting.
    pub(crate) fn of(spec: &KubeletAuthenticationSpec) -> Result<Self, InvalidSpec> {
        let audiences = audiences(spec)?;
        check_stored(spec)?;
        let serving_address_ranges = serving_address_ranges(spec)?;
        Ok(Self {
            audiences,
            serving_address_ranges,
        })
    }
}

/// The additional audiences of a Cluster.
fn audiences(spec: &KubeletAuthenticationSpec) -> Result<Vec<Audience>, InvalidAudience> {
    let audience = |text: &String| Audience::parse(text).map_err(|_| InvalidAudience(text.clone()));
    spec.audiences.iter().map(audience).collect()
}

/// The ranges that limit the addresses in serving certificates.
///
/// # Errors
///
/// Returns an error if an entry is invalid, because ignoring the entry would change or remove the limit.
fn serving_address_ranges(
    spec: &KubeletAuthenticationSpec,
) -> Result<Vec<AddressRange>, InvalidServingAddressRange> {
    let ranges = spec.serving_address_ranges.iter();
    ranges
        .map(|text| {
            text.parse().map_err(|why| InvalidServingAddressRange {
                text: text.clone(),
                why,
            })
        })
        .collect()
}

/// The inputs to the decisions on a cluster's requests, without the clients and the records.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) spec: KubeletAuthenticationSpec,
    pub(crate) cluster: Cluster,
    pub(crate) verifiers: Verifiers,
    pub(crate) audiences: Vec<Audience>,
    pub(crate) serving_address_ranges: Vec<AddressRange>,
    /// The signer that uses the cluster's CA.
    pub(crate) signer: Arc<Signer>,
}

/// The clients and the stored data of one cluster. `N` is the type that reads its Nodes.
pub(crate) struct Dependencies<N> {
    pub(crate) nodes: N,
    /// The control-plane endpoint's hosts, in addition to the host in the Cluster.
    pub(crate) endpoint_hosts: Vec<String>,
    pub(crate) inventory: Arc<dyn Inventory>,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) absences: Absences,
    pub(crate) revocations: Revocations,
    pub(crate) lines: Arc<dyn LogLines>,
}

impl Configuration {
    /// Creates the configuration. `checked` is the result of [`CheckedSpec::of`] for `spec`. `of_cas` are the audiences
    /// of the CAs that the cluster's API server uses.
    pub(crate) fn new(
        spec: &KubeletAuthenticationSpec,
        checked: CheckedSpec,
        cluster: Cluster,
        of_cas: impl IntoIterator<Item = Audience>,
        verifiers: Verifiers,
        signer: Arc<Signer>,
    ) -> Self {
        let audiences: BTreeSet<_> = of_cas.into_iter().chain(checked.audiences).collect();
        Self {
            spec: spec.clone(),
            cluster,
            verifiers,
            audiences: audiences.into_iter().collect(),
            serving_address_ranges: checked.serving_address_ranges,
            signer,
        }
    }

    /// Creates the context for decisions on the cluster's requests.
    pub(crate) fn context<N>(&self, dependencies: Dependencies<N>) -> Context
    where
        N: Nodes + NodeReportedAddresses + 'static,
    {
        let spec = &self.spec;
        let nodes = Arc::new(dependencies.nodes);
        let mut serving = serving_policy(spec, &self.cluster, nodes.clone());
        serving.endpoint_hosts.extend(dependencies.endpoint_hosts);
        serving
            .address_ranges
            .clone_from(&self.serving_address_ranges);
        let enforcement = enforcement(spec);
        let ledger = RecordLedger::new(
            dependencies.records,
            dependencies.inventory.clone(),
            nodes,
            ledger_policy(spec),
            enforcement.clone(),
        )
        .with_absences(dependencies.absences)
        .with_revocations(dependencies.revocations)
        .with_lines(dependencies.lines);
        Context {
            verifiers: self.verifiers.clone(),
            audiences: self.audiences.clone(),
            inventory: dependencies.inventory,
            ledger: Arc::new(ledger),
            signer: self.signer.clone(),
            longest_lifetime: spec.longest_lifetime(),
            exempt_nodes: spec.exempt(),
            enforcement,
            serving,
        }
    }
}
