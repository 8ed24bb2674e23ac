//! The state of a workload cluster at its last inspection.

use std::collections::BTreeMap;
use std::time::SystemTime;

use node_attestation_core::crd::IdentityCounts;
use node_attestation_core::crd::conditions::{ConditionStatus, reason};

use crate::preflight::ServerVersion;

/// The findings of the last inspection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) answers: ApiReachability,
    /// The missing rights, as an operator would write them in a Role.
    pub(super) missing: Vec<String>,
    /// The ways round attestation, with the message of the condition; `None` before the first inspection.
    pub(super) paths: Option<(AutoApprove, String)>,
    pub(super) identities: Option<IdentityCounts>,
    /// The earliest expiry of a certificate.
    pub(super) earliest_expiry: Option<SystemTime>,
    /// The number of live records whose machines are gone, and that are retired only if a person allows it, because
    /// they are too many at once.
    pub(super) held_back: Option<usize>,
    /// The attestors that are not authorized and have live records, with the number of these; `None` if it is unknown.
    pub(super) unauthorized: Option<BTreeMap<String, usize>>,
    /// The Machines whose nodes cannot come back; `None` if it is unknown.
    pub(super) locked_out: Option<LockedOut>,
    /// Whether the addresses of Services are known; `None` before the first inspection.
    pub(super) services: Option<ServiceAddresses>,
    /// The parts of the periodic work that failed, with the error.
    pub(super) undone: Vec<String>,
}

impl Health {
    /// The result of a part, whose error is noted.
    pub(super) fn note<T>(&mut self, what: &str, done: Result<T, String>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                self.undone.push(format!("{what}: {error}"));
                None
            }
        }
    }
}

/// Whether the API server answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ApiReachability {
    /// There was no call yet.
    #[default]
    Unknown,
    /// It answers; this is its version.
    Yes(ServerVersion),
    /// It does not answer.
    No(String),
    /// It refuses our user.
    Refused(String),
}

/// The Machines whose nodes need a bootstrap token to come back, and have no live one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LockedOut {
    /// Attestation is not enforced, so that a token of any kind is enough; or tokens are not the controller's.
    NotChecked,
    /// The names of the first ones, and the number of all.
    Machines { named: Vec<String>, count: usize },
}

/// Whether the addresses of Services are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAddresses {
    pub(super) are_known: bool,
    /// An entry of the Cluster that is no range.
    pub(super) unreadable: Option<String>,
}

/// Whether requests without evidence are approved by anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AutoApprove {
    /// Unknown: the API server did not answer.
    Unasked,
    /// They are not.
    Closed,
    /// Through kubeadm's bindings alone.
    Bindings,
    /// Through kubeadm's bindings, which stay until every Node has a record.
    Waiting,
    /// Through other bindings or approvers.
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
