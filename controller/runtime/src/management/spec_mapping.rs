//! Converts a `KubeletAuthentication` to policies, without I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use node_attestation_core::crd::{
    ALLOW_RETIREMENT_ANNOTATION, AutoApproveBindings, GuestReportedAddresses,
    KubeletAuthentication, KubeletAuthenticationSpec,
};
use node_attestation_core::ledger::{AllRecords, LedgerPolicy};
use node_attestation_core::pace::Pace;
use node_attestation_core::scope::{Enforcement, EnforcementState};
use node_attestation_core::serving::{
    AddressRange, NodeReportedAddresses, ServiceRanges, ServingPolicy,
};

use crate::capi::Cluster;

/// The enforcement state until the periodic work has read the admission policy. A previous process might have enforced
/// attestation.
pub(super) fn enforcement(spec: &KubeletAuthenticationSpec) -> Enforcement {
    Enforcement::new(if stays_enforced(spec) {
        EnforcementState::Unknown
    } else {
        EnforcementState::Off
    })
}

/// Whether the settings require enforcement. With `Remove`, attestation is enforced as soon as no node would be
/// blocked.
pub(crate) fn is_to_be_enforced(spec: &KubeletAuthenticationSpec) -> bool {
    spec.mode() != AutoApproveBindings::Report
}

/// Whether attestation stays enforced after it was enforced. If the mode is not set, attestation stays enforced: a
/// writer of a Cluster can change the attestors, and could otherwise end enforcement with `insecure`.
pub(crate) fn stays_enforced(spec: &KubeletAuthenticationSpec) -> bool {
    spec.auto_approve_bindings.is_none() || is_to_be_enforced(spec)
}

/// The number of records that one round is allowed to retire, as set by an operator. 0 if the annotation is not a
/// number.
pub(crate) fn allowed_retirements(authentication: &KubeletAuthentication) -> usize {
    let annotations = authentication.metadata.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(ALLOW_RETIREMENT_ANNOTATION)?.parse().ok())
        .unwrap_or_default()
}

/// The maximum number of attestation providers in a message. A tenant chooses the names in its records.
const MAX_ATTESTORS: usize = 8;

/// The name for all attestation providers beyond [`MAX_ATTESTORS`].
const OTHERS: &str = "others";

/// The attestation providers of these records that `spec` does not authorize, with the number of their records. Nodes
/// whose record is from one of these providers cannot renew.
pub(crate) fn unauthorized<'a>(
    spec: &KubeletAuthenticationSpec,
    attestors: impl IntoIterator<Item = &'a str>,
) -> BTreeMap<String, usize> {
    let mut unauthorized: BTreeMap<String, usize> = BTreeMap::new();
    for attestor in attestors {
        note(&mut unauthorized, spec, attestor);
    }
    unauthorized
}

/// Counts a record from this attestation provider, if `spec` does not authorize the provider.
fn note(
    unauthorized: &mut BTreeMap<String, usize>,
    spec: &KubeletAuthenticationSpec,
    attestor: &str,
) {
    if spec.authorized_attestors.iter().any(|one| one == attestor) {
        return;
    }
    let is_full = unauthorized.len() >= MAX_ATTESTORS;
    match unauthorized.get_mut(attestor) {
        Some(count) => *count += 1,
        None if is_full => *unauthorized.entry(OTHERS.to_owned()).or_default() += 1,
        None => {
            unauthorized.insert(attestor.to_owned(), 1);
        }
    }
}

/// The attestation providers of live records that `spec` does not authorize. Excludes revoked nodes, because they
/// cannot renew with any attestation provider. Other tasks run between pages of records.
pub(crate) async fn unauthorized_of_records(
    spec: &KubeletAuthenticationSpec,
    records: &AllRecords,
) -> BTreeMap<String, usize> {
    let (mut unauthorized, mut pace) = (BTreeMap::new(), Pace::default());
    for stored in &**records {
        let record = &stored.record;
        if record.is_live() && !record.is_revoked() {
            note(&mut unauthorized, spec, record.holder.attestor.as_str());
        }
        pace.step().await;
    }
    unauthorized
}

/// Formats these attestation providers with the number of their records, for users.
pub(crate) fn counted(attestors: &BTreeMap<String, usize>) -> String {
    let counted = attestors
        .iter()
        .map(|(name, count)| format!("{name} ({count})"));
    counted.collect::<Vec<_>>().join(", ")
}

/// The policy of the ledger.
pub(super) fn ledger_policy(spec: &KubeletAuthenticationSpec) -> LedgerPolicy {
    LedgerPolicy {
        adoption: spec.adopts(),
        longest_lifetime: spec.longest_lifetime(),
    }
}

/// The Service ranges of a Cluster.
#[derive(Debug, Default)]
pub(crate) struct ServiceRangesOfCluster {
    pub(crate) ranges: Vec<AddressRange>,
    /// An entry that is not a valid range.
    pub(crate) unreadable: Option<String>,
}

impl ServiceRangesOfCluster {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut of_cluster = Self::default();
        for text in &cluster.service_ranges {
            match AddressRange::lenient(text) {
                Some(range) => of_cluster.ranges.push(range),
                None => of_cluster.unreadable = Some(text.clone()),
            }
        }
        of_cluster
    }

    /// Whether the Cluster contains all ranges.
    pub(crate) fn are_all(&self) -> bool {
        self.unreadable.is_none() && !self.ranges.is_empty()
    }

    /// The ranges to use until the workload cluster reports its ranges.
    fn known(self) -> ServiceRanges {
        let are_all = self.are_all();
        ServiceRanges::new(self.ranges, are_all)
    }
}

/// The policy for serving certificates, without the ranges of `spec`.
pub(super) fn serving_policy(
    spec: &KubeletAuthenticationSpec,
    cluster: &Cluster,
    reported: Arc<dyn NodeReportedAddresses>,
) -> ServingPolicy {
    let endpoint = cluster.endpoint.as_ref();
    let endpoint = endpoint.map(|endpoint| endpoint.host.to_lowercase());
    ServingPolicy {
        endpoint_hosts: endpoint.into_iter().collect(),
        service_ranges: ServiceRangesOfCluster::of(cluster).known(),
        address_ranges: Vec::new(),
        node_reported: match spec.guest_reported_addresses {
            GuestReportedAddresses::Refuse => None,
            GuestReportedAddresses::Allow => Some(reported),
        },
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use kubelet_attestation::names::Provider;
    use node_attestation_core::identifiers::RecordUid;
    use node_attestation_core::ledger::{
        Record, Revoked, Stored, Tombstone, TombstoneReason, Version,
    };
    use node_attestation_core::pace;
    use node_attestation_core::testing::pauses;
    use node_attestation_core::testing::records::{at, claim};

    use super::*;
    use crate::capi::OwnAttestors;

    /// A live record for a machine with this attestation provider.
    fn record(attestor: Provider) -> Record {
        let mut claim = claim("m1", "n1", 1, 0);
        claim.provider = attestor;
        Record::first(&claim, RecordUid::new([7; 16]), None, at(0))
    }

    #[test]
    fn other_tasks_run_while_the_attestors_of_many_records_are_counted() {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["tpm"]);
        let stored = Arc::new(Stored {
            record: record(Provider::INSECURE),
            version: Version::new("1"),
        });
        let all: AllRecords = vec![stored; 10 * pace::PAGE].into();

        let (found, count) = pauses(unauthorized_of_records(&spec, &all));

        assert_eq!(found.values().sum::<usize>(), 10 * pace::PAGE);
        assert_eq!(count, 10);
    }

    #[test]
    fn only_records_that_renew_have_an_unauthorized_attestor() {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["tpm"]);
        let of = |record: Record| {
            let stored = Stored {
                record,
                version: Version::new("1"),
            };
            let all = AllRecords::from([Arc::new(stored)]);
            block_on(unauthorized_of_records(&spec, &all))
        };
        let mut revoked = record(Provider::INSECURE);
        revoked.revoked = Some(Revoked {
            generation: revoked.generation,
            at: at(1),
        });
        let mut retired = record(Provider::INSECURE);
        retired.tombstone = Some(Tombstone {
            since: at(1),
            reason: TombstoneReason::MachineGone,
            until: at(9),
        });
        // The revocation in this record applies only to an earlier generation.
        let mut later = revoked.clone();
        later.generation += 1;

        for (record, expected) in [
            (record(Provider::INSECURE), 1),
            (later, 1),
            (record(Provider::TPM), 0),
            (revoked, 0),
            (retired, 0),
        ] {
            let found = of(record.clone());
            assert_eq!(found.values().sum::<usize>(), expected, "{record:?}");
            assert!(found.keys().all(|attestor| attestor == "insecure"));
        }
    }

    /// The ranges of a Cluster that contains these values, whether the Cluster contains all ranges, and the invalid
    /// entry.
    fn of(texts: &[&str]) -> (Vec<String>, bool, Option<String>) {
        let cluster = Cluster {
            uid: "1".to_owned(),
            paused: false,
            deleting: false,
            watch_filter: None,
            endpoint: None,
            service_ranges: texts.iter().map(ToString::to_string).collect(),
            infrastructure: None,
            control_plane: None,
            attestors: OwnAttestors::Unset,
        };
        let of_cluster = ServiceRangesOfCluster::of(&cluster);
        let are_all = of_cluster.are_all();
        let ranges = of_cluster.ranges.iter().map(ToString::to_string).collect();
        let unreadable = of_cluster.unreadable.clone();
        assert_eq!(of_cluster.known().are_known(), are_all);
        (ranges, are_all, unreadable)
    }

    #[test]
    fn enforcement_is_unknown_at_first_unless_the_settings_exclude_it() {
        let mut spec = KubeletAuthenticationSpec::new("prod-1", &["null"]);
        for (setting, expected) in [
            (Some(AutoApproveBindings::Remove), EnforcementState::Unknown),
            (
                Some(AutoApproveBindings::RemoveNow),
                EnforcementState::Unknown,
            ),
            (Some(AutoApproveBindings::Report), EnforcementState::Off),
            (None, EnforcementState::Unknown),
        ] {
            spec.auto_approve_bindings = setting;
            assert_eq!(enforcement(&spec).state(), expected, "{setting:?}");
        }
    }

    #[test]
    fn service_ranges_are_complete_only_if_every_range_is_valid() {
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(&[]), (vec![], false, None));
        assert_eq!(
            of(&["10.96.0.1/12", "fd00::/108"]),
            (texts(&["10.96.0.0/12", "fd00::/108"]), true, None)
        );
        assert_eq!(
            of(&["10.96.0.0/12", "fd00::"]),
            (texts(&["10.96.0.0/12"]), false, Some("fd00::".to_owned()))
        );
    }
}
