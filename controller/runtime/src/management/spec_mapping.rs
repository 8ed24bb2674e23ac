//! What a `KubeletAuthentication`'s words mean to those who decide: no input or output.

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_attestation::names::Provider;
use node_attestation_core::crd::{AutoApproveBindings, BuiltInRenewal, KubeletAuthenticationSpec};
use node_attestation_core::ledger::{Certificates, LedgerPolicy};
use node_attestation_core::lifetimes::Lifetimes;
use node_attestation_core::scope::{Duties, KubeletSignerMode};
use node_attestation_core::serving::ServingPolicy;
use node_attestation_core::verifier::Verifiers;

use crate::capi::Cluster;
use crate::client::ClusterAccess;
use crate::hardening::admission::{self, Signing};

/// The longest validity that is granted.
pub(crate) fn lifetimes(spec: &KubeletAuthenticationSpec) -> Lifetimes {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    Lifetimes {
        attested: seconds(spec.certificate.expiration_seconds),
        insecure: seconds(spec.certificate.insecure_expiration_seconds),
    }
}

/// The requests that the controller answers beside those to the client signers of the verifiers.
pub(crate) fn duties(spec: &KubeletAuthenticationSpec, signs: bool) -> Duties {
    Duties {
        serving: true,
        built_in: if signs {
            KubeletSignerMode::Deny
        } else {
            KubeletSignerMode::ApproveOnly
        },
        control_plane_renewal: match spec.built_in_renewal {
            BuiltInRenewal::Refuse => false,
            BuiltInRenewal::ControlPlane => true,
        },
    }
}

/// Whether the operator wants the ways round attestation closed, once that stops no node.
pub(crate) fn is_to_be_enforced(spec: &KubeletAuthenticationSpec) -> bool {
    match spec.auto_approve_bindings {
        AutoApproveBindings::Report => false,
        AutoApproveBindings::Remove => true,
    }
}

/// What the ledger allows.
pub(crate) fn ledger_policy(
    spec: &KubeletAuthenticationSpec,
    verifiers: &Verifiers,
    signs: bool,
) -> LedgerPolicy {
    let lifetimes = lifetimes(spec);
    let insecure = verifiers.of(&Provider::INSECURE).is_some();
    let longest_lifetime = if insecure {
        lifetimes.attested.max(lifetimes.insecure)
    } else {
        lifetimes.attested
    };
    LedgerPolicy {
        reenrolment: spec.reenrolment,
        adoption: spec.adoption,
        name_reuse: spec.name_reuse,
        stale_nodes: spec.stale_nodes,
        certificates: if signs {
            Certificates::Marked
        } else {
            Certificates::Unmarked
        },
        longest_lifetime,
    }
}

/// What serving certificates must not be for; whose word counts is left to the caller.
pub(crate) fn serving_policy(cluster: &Cluster, access: &ClusterAccess) -> ServingPolicy {
    let endpoint = cluster.endpoint.as_ref();
    let endpoint = endpoint.map(|endpoint| endpoint.host.to_lowercase());
    ServingPolicy {
        endpoint_hosts: endpoint.into_iter().chain(access.server_host()).collect(),
        // What is no range has no address in it.
        service_ranges: cluster
            .service_ranges
            .iter()
            .filter_map(|range| range.parse().ok())
            .collect(),
        guest_reported: None,
    }
}

/// The requests that a workload cluster takes from tokens and nodes, once that is enforced.
pub(super) fn admission_settings(verifiers: &Verifiers, signs: bool) -> admission::Settings {
    admission::Settings {
        attestors: verifiers.providers().cloned().collect(),
        signing: if signs {
            Signing::Ours
        } else {
            Signing::BuiltIn
        },
        built_in_renewal: BTreeSet::new(),
        enforced: false,
    }
}
