//! The inputs to an attempt to get a new credential, and the failure of an attempt.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use super::allowed::Allowed;
use super::local::Local;
use super::step::Steps;
use crate::attester::Attester;
use crate::backoff::{FailureRecord, FailureScope};
use crate::clock::{self, Deadline};
use crate::credential::Credential;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::ClusterEndpoint;
use crate::kube::{ApiError, ApiErrorKind};
use crate::log::Log;
use crate::machine::Machine;
use crate::process::command;
use crate::settings::Settings;

/// The delay before the next attempt if a failure has no back-off.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// The failure of a run to get a new credential, with its back-off.
#[derive(Debug)]
pub(super) struct RenewalError {
    pub(super) failure: Failure,
    pub(super) next_attempt: SystemTime,
}

impl From<Failure> for RenewalError {
    /// A failure without a back-off.
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            next_attempt: clock::now() + SOON,
        }
    }
}

impl From<RenewalError> for Failure {
    fn from(error: RenewalError) -> Self {
        error.failure
    }
}

impl RenewalError {
    /// Returns the recorded failure while its back-off lasts.
    pub(super) fn of_memory(
        record: &FailureRecord,
        scope: &FailureScope,
        now: SystemTime,
    ) -> Option<Self> {
        let until = record.holds(scope, now)?;
        let times = match record.count {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let what = format!(
            "back-off until {}; failed {times} with exit code {}: {}",
            humantime::format_rfc3339_seconds(until),
            record.code,
            record.message
        );
        let remedy = format!("{}; to retry now, run: {} renew", record.remedy, command());
        Some(Self {
            failure: Failure::new(Code::BackOff, what, remedy),
            next_attempt: until,
        })
    }
}

/// The condition under which a run gets a new credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    IfDue,
    /// A renewal is due, or this certificate, which the API server refuses, is still stored.
    Unless {
        certificate_pem: String,
        refusal: ApiErrorKind,
    },
    Always,
}

impl Demand {
    /// Returns the demand for a new credential if a renewal is due, or if `refused` is still stored.
    pub(super) fn unless_replaced(refused: &Credential, error: &ApiError) -> Self {
        Self::Unless {
            certificate_pem: refused.certificate_pem().to_owned(),
            refusal: error.kind,
        }
    }

    /// Whether the API server refuses the stored certificate with a 403.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unless { refusal, .. } if *refusal == ApiErrorKind::Forbidden)
    }

    /// Whether the run can use `stored`, which is not due for renewal, instead of a new credential.
    pub(super) fn is_met_by(&self, stored: &Credential) -> bool {
        match self {
            Self::IfDue => true,
            Self::Unless {
                certificate_pem, ..
            } => certificate_pem != stored.certificate_pem(),
            Self::Always => false,
        }
    }
}

/// One attempt to get a new credential. The attempt owns its data, because its thread can be abandoned, and shares the
/// data with the waiting thread.
pub(super) struct Attempt {
    pub(super) attester: Arc<dyn Attester>,
    pub(super) settings: Settings,
    /// The text that the provider stores about its last evidence.
    pub(super) remembered: OnceLock<String>,
    pub(super) endpoint: Option<Arc<ClusterEndpoint>>,
    pub(super) machine: Machine,
    pub(super) local: Local,
    pub(super) scope: FailureScope,
    pub(super) allowed: Allowed,
    pub(super) log: Log,
    pub(super) ignore_backoff: bool,
    pub(super) demand: Demand,
    pub(super) deadline: Deadline,
    pub(super) lock_deadline: Deadline,
    pub(super) steps: Steps,
}
