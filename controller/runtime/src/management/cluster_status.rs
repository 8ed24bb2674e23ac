//! The state of a workload cluster at its last inspection.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::SystemTime;

use node_attestation_core::crd::IdentityCounts;
use node_attestation_core::crd::conditions::{ConditionStatus, reason};

use super::periodic::PartError;
use crate::hardening::other_approvers::OtherApprovers;
use crate::preflight::ServerVersion;

/// The findings of the last inspection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) answers: ApiReachability,
    /// The missing permissions, written as rules of a Role.
    pub(super) missing: Vec<String>,
    /// The open paths that bypass attestation, with the message for the condition. `None` before the first inspection.
    pub(super) paths: Option<(AutoApprove, String)>,
    /// The other approvers of serving certificates, or the error from searching for them. `None` before the first
    /// inspection.
    pub(super) approvers: Option<Result<OtherApprovers, PartError>>,
    pub(super) identities: Option<IdentityCounts>,
    /// The earliest expiry time of a certificate.
    pub(super) earliest_expiry: Option<SystemTime>,
    /// The number of Ready Nodes whose certificates are overdue for renewal. `None` if unknown.
    pub(super) overdue: Option<usize>,
    /// The number of exempt Nodes without a record. `None` before the first inspection.
    pub(super) exempt: Option<usize>,
    /// The number of exempt names for which two valid certificates exist. `None` if unknown.
    pub(super) overlaps: Option<usize>,
    /// The number of live records whose machines are gone. Set if there are too many to retire them together without an
    /// operator's permission.
    pub(super) held_back: Option<usize>,
    /// The attestation providers that have live records but are not authorized, with the number of their records.
    /// `None` if unknown.
    pub(super) unauthorized: Option<BTreeMap<String, usize>>,
    /// The Machines whose nodes cannot rejoin. `None` if unknown.
    pub(super) locked_out: Option<LockedOut>,
    /// Whether the Service addresses are known. `None` before the first inspection.
    pub(super) services: Option<ServiceAddressState>,
    /// Whether the controller has an external signer, but signs with the key in the Secret.
    pub(super) signer_unused: bool,
    /// The failed parts of the periodic work, with their errors.
    pub(super) failed: Vec<String>,
}

impl Health {
    /// Returns the result of a part of the work. Records an error.
    pub(super) fn note<T>(&mut self, what: &str, done: Result<T, impl Display>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                self.failed.push(format!("{what}: {error}"));
                None
            }
        }
    }
}

/// The result of the last call to the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ApiReachability {
    /// No call has been made yet.
    #[default]
    Unknown,
    /// The API server responds, and has this version.
    Yes(ServerVersion),
    /// The API server does not respond.
    No(String),
    /// The API server rejects the controller's user.
    Refused(String),
}

/// The Machines whose nodes need a bootstrap token to rejoin, but do not have a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LockedOut {
    /// Not checked, either because attestation is not enforced, so any token is sufficient, or because the controller
    /// does not manage tokens.
    NotChecked,
    /// The first names, and the total number.
    Machines { named: Vec<String>, count: usize },
}

/// Whether the Service addresses are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAddressState {
    pub(super) are_known: bool,
    /// An invalid Service range in the Cluster.
    pub(super) unreadable: Option<String>,
}

/// Whether requests can be approved without evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AutoApprove {
    /// Unknown, because the API server did not respond.
    NotReviewed,
    /// Requests cannot be approved without evidence.
    Closed,
    /// Only kubeadm's bindings approve requests without evidence.
    Bindings,
    /// kubeadm's bindings approve requests without evidence until every Node has a record.
    Waiting,
    /// Other bindings or approvers approve requests without evidence.
    Open,
}

impl AutoApprove {
    /// The status and the reason of the condition.
    pub(super) fn condition(self) -> (ConditionStatus, &'static str) {
        use ConditionStatus::{False, True, Unknown};
        match self {
            Self::NotReviewed => (Unknown, reason::UNREACHABLE),
            Self::Closed => (True, reason::CLOSED),
            Self::Bindings => (False, reason::AUTO_APPROVE_BINDING_FOUND),
            Self::Waiting => (False, reason::WAITING_FOR_RECORDS),
            Self::Open => (False, reason::OPEN_BY_OTHER_MEANS),
        }
    }
}
