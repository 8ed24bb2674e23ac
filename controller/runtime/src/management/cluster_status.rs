//! The state of a served workload cluster.

use node_attestation_core::crd::conditions::{ConditionStatus, reason};

use crate::preflight::ServerVersion;

/// What was found out when it was last looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) answers: ApiReachability,
    /// The rights that are missing, as an operator would write them down.
    pub(super) missing: Vec<String>,
    /// The ways round attestation, and what is said of them; `None` before anybody asked.
    pub(super) paths: Option<(AutoApprove, String)>,
    pub(super) census: Option<RecordCounts>,
    /// Records that are not retired, because they are too many at once.
    pub(super) held_back: Option<HeldBack>,
    /// What could not be done, and why; not empty where something was not.
    pub(super) undone: Vec<String>,
}

/// Whether the API server answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ApiReachability {
    /// It was not asked yet.
    #[default]
    Unknown,
    /// It does, and is of this version.
    Yes(ServerVersion),
    /// It does not.
    No(String),
    /// It does, and does not let us in.
    Refused(String),
}

/// Whether anybody has requests approved without evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AutoApprove {
    /// It could not be found out.
    Unasked,
    /// Nobody has.
    Closed,
    /// Somebody has, by kubeadm's bindings alone.
    Bindings,
    /// So has somebody, and they stay until some Nodes have records.
    Waiting,
    /// Somebody has.
    Open,
}

impl AutoApprove {
    /// The status of the condition, and its reason.
    pub(super) fn condition(self) -> (ConditionStatus, &'static str) {
        use ConditionStatus::{False, True, Unknown};
        match self {
            Self::Unasked => (Unknown, reason::UNREACHABLE),
            Self::Closed => (True, reason::CLOSED),
            Self::Bindings => (False, reason::AUTO_APPROVE_BINDING_FOUND),
            Self::Waiting => (False, reason::WAITING_FOR_RECORDS),
            Self::Open => (False, reason::OPEN_BY_OTHER_MEANS),
        }
    }
}

/// Records whose machines are gone, and which only a person can have retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldBack {
    pub(super) gone: usize,
    pub(super) live: usize,
}

/// How many records there are, and when the first certificate ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RecordCounts {
    pub(super) live: u32,
    pub(super) tombstones: u32,
    pub(super) earliest_expiry: Option<std::time::SystemTime>,
}
