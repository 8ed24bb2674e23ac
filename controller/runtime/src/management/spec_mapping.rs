//! The policies that the `spec` of a `KubeletAuthentication` stands for: no input or output.

use std::sync::Arc;

use kubelet_attestation::names::Audience;
use node_attestation_core::crd::{
    AutoApproveBindings, BuiltInRenewal, GuestReportedAddresses, KubeletAuthenticationSpec,
};
use node_attestation_core::decide::Context;
use node_attestation_core::inventory::Inventory;
use node_attestation_core::ledger::{Absences, Certificates, LedgerPolicy, RecordLedger, Records};
use node_attestation_core::lifetimes::Lifetimes;
use node_attestation_core::scope::{Duties, Enforcement, Issuance, KubeletSignerMode};
use node_attestation_core::serving::{
    AddressRange, InvalidAddressRange, NodeReportedAddresses, ServingPolicy,
};
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::Verifiers;

use crate::capi::Cluster;
use crate::client::ClusterAccess;
use crate::nodes::KubeNodes;

/// The parts of the context of one cluster.
pub(crate) struct ContextBuilder<'a> {
    pub(crate) spec: &'a KubeletAuthenticationSpec,
    pub(crate) cluster: &'a Cluster,
    pub(crate) access: &'a ClusterAccess,
    pub(crate) verifiers: Verifiers,
    pub(crate) audiences: Vec<Audience>,
    /// The result of [`serving_address_ranges`].
    pub(crate) serving_address_ranges: Vec<AddressRange>,
    pub(crate) inventory: Arc<dyn Inventory>,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) absences: Absences,
    /// `None`: kube-controller-manager signs.
    pub(crate) signer: Option<Arc<Signer>>,
}

impl ContextBuilder<'_> {
    /// The context of decisions about the cluster's requests.
    pub(crate) fn context(self) -> Context {
        let Self { spec, access, .. } = self;
        let signs = self.signer.is_some();
        let nodes = Arc::new(KubeNodes::new(access.client().clone()));
        let policy = ledger_policy(spec, signs);
        let ledger = RecordLedger::new(self.records, self.inventory.clone(), nodes, policy);
        Context {
            verifiers: self.verifiers,
            audiences: self.audiences,
            inventory: self.inventory,
            ledger: Arc::new(ledger.with_absences(self.absences)),
            issuance: self.signer.map_or(Issuance::ApproveOnly, Issuance::Sign),
            lifetimes: lifetimes(spec),
            duties: duties(spec, signs),
            // Until somebody has found out whether it is on.
            enforcement: Enforcement::new(false),
            serving: serving_policy(spec, self.cluster, access, self.serving_address_ranges),
        }
    }
}

/// The longest lifetimes of certificates.
fn lifetimes(spec: &KubeletAuthenticationSpec) -> Lifetimes {
    let longest = spec.longest_lifetime();
    Lifetimes {
        attested: longest,
        insecure: longest,
    }
}

/// The requests that the controller answers, apart from those to the client signers of the verifiers.
fn duties(spec: &KubeletAuthenticationSpec, signs: bool) -> Duties {
    Duties {
        serving: true,
        built_in: if signs {
            KubeletSignerMode::Deny
        } else {
            KubeletSignerMode::ApproveOnly
        },
        control_plane_renewal: spec.built_in_renewal == BuiltInRenewal::ControlPlane,
    }
}

/// Whether the operator wants attestation enforced, once that stops no node.
pub(crate) fn is_to_be_enforced(spec: &KubeletAuthenticationSpec) -> bool {
    spec.auto_approve_bindings == AutoApproveBindings::Remove
}

/// The policy of the ledger.
fn ledger_policy(spec: &KubeletAuthenticationSpec, signs: bool) -> LedgerPolicy {
    LedgerPolicy {
        adoption: spec.adoption,
        certificates: if signs {
            Certificates::Marked
        } else {
            Certificates::Unmarked
        },
        longest_lifetime: spec.longest_lifetime(),
    }
}

/// An entry of `spec.servingAddressRanges` is no range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.servingAddressRanges: {text:?} is invalid: {why}. Until it is corrected, no request of the Cluster is \
     answered"
)]
pub(crate) struct InvalidServingAddressRange {
    text: String,
    why: InvalidAddressRange,
}

/// The ranges that the addresses of serving certificates are limited to.
///
/// # Errors
///
/// One of them is invalid. Without it, the others would be another limit, or none.
pub(crate) fn serving_address_ranges(
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

/// The policy for serving certificates.
fn serving_policy(
    spec: &KubeletAuthenticationSpec,
    cluster: &Cluster,
    access: &ClusterAccess,
    address_ranges: Vec<AddressRange>,
) -> ServingPolicy {
    let guest_reported: Option<Arc<dyn NodeReportedAddresses>> = match spec.guest_reported_addresses
    {
        GuestReportedAddresses::Refuse => None,
        GuestReportedAddresses::Allow => Some(Arc::new(KubeNodes::new(access.client().clone()))),
    };
    let endpoint = cluster.endpoint.as_ref();
    let endpoint = endpoint.map(|endpoint| endpoint.host.to_lowercase());
    ServingPolicy {
        endpoint_hosts: endpoint.into_iter().chain(access.server_host()).collect(),
        // An invalid range contains no address.
        service_ranges: cluster
            .service_ranges
            .iter()
            .filter_map(|range| range.parse().ok())
            .collect(),
        address_ranges,
        guest_reported,
    }
}
