//! The values that are reported about a workload cluster.

use std::collections::BTreeMap;
use std::time::SystemTime;

use node_attestation_core::unshared::Unshared;

use super::Pending;

/// A workload cluster.
#[derive(Debug)]
pub(crate) struct ClusterValues {
    namespace: String,
    name: String,
    /// Not shared: only the tasks of this cluster and the metrics page use this lock.
    pub(super) state: Unshared<CurrentValues>,
}

/// The statuses of a condition, each with its label value.
pub(crate) const CONDITION_STATUSES: [(&str, &str); 3] =
    [("True", "true"), ("False", "false"), ("Unknown", "unknown")];

/// The denial reasons that might mean that a machine, its disk or its TPM was copied.
pub(super) const COPIED: [&str; 5] = [
    "TpmRanBackwards",
    "TpmOfAnotherMachine",
    "AnotherInstance",
    "KeyOfAnotherMachine",
    "EvidenceReplayed",
];

/// The label value for all other reasons, so that a cluster has at most six time series.
const OTHER: &str = "other";

/// The values of one cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct CurrentValues {
    pub(super) phase: Option<&'static str>,
    /// The condition types, each with its status.
    pub(super) conditions: Vec<(&'static str, &'static str)>,
    /// The number of live records, and the number of retired records.
    pub(super) records: Option<(u32, u32)>,
    pub(super) earliest_expiry: Option<SystemTime>,
    pub(super) overdue: Option<usize>,
    pub(super) exempt: Option<usize>,
    pub(super) overlaps: Option<usize>,
    /// For each reason, the number of requests for serving certificates that other approvers approved.
    pub(super) approvals: BTreeMap<String, usize>,
    pub(super) expiring: Option<SystemTime>,
    pub(super) unmeasured: Option<usize>,
    /// The number of denials for each reason.
    pub(super) denials: BTreeMap<&'static str, usize>,
    /// The pending requests while the cluster is served.
    pub(super) pending: Option<Pending>,
}

/// The reported state of a cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterReport {
    /// The phase.
    pub(crate) phase: &'static str,
    /// The condition types, each with its status.
    pub(crate) conditions: Vec<(&'static str, &'static str)>,
    /// The number of live records, and the number of retired records.
    pub(crate) records: Option<(u32, u32)>,
    /// The earliest expiry time of a live node's certificate.
    pub(crate) earliest_expiry: Option<SystemTime>,
    /// The number of Ready Nodes whose certificates are overdue for renewal.
    pub(crate) overdue: Option<usize>,
    /// The number of exempt Nodes without a record.
    pub(crate) exempt: Option<usize>,
    /// The number of exempt names for which two valid certificates exist.
    pub(crate) overlaps: Option<usize>,
    /// For each reason, the number of requests for serving certificates that other approvers approved.
    pub(crate) approvals: BTreeMap<String, usize>,
    /// The earliest expiry time of an endorsement key certificate, if it expires soon.
    pub(crate) expiring: Option<SystemTime>,
    /// The number of machines whose firmware does not measure their boot.
    pub(crate) unmeasured: Option<usize>,
}

impl ClusterReport {
    /// The state of a served cluster, without any other values.
    pub(crate) fn serving() -> Self {
        Self {
            phase: "serving",
            ..Self::default()
        }
    }
}

impl ClusterValues {
    pub(super) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            state: Unshared::default(),
        }
    }

    /// The labels of the cluster.
    pub(super) fn labels(&self) -> [(&'static str, String); 2] {
        [
            ("namespace", self.namespace.clone()),
            ("cluster", self.name.clone()),
        ]
    }

    pub(super) fn denied(&self, reason: &str) {
        let copied = COPIED.into_iter().find(|copied| *copied == reason);
        let mut state = self.state.lock();
        *state.denials.entry(copied.unwrap_or(OTHER)).or_default() += 1;
    }

    pub(super) fn state(&self) -> CurrentValues {
        self.state.lock().clone()
    }
}
