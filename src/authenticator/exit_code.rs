//! Exit codes and remedies of errors.

use std::path::Path;

use crate::attester::AttesterError;
use crate::credential::IssuedError;
use crate::enrolment::EnrolmentError;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::KubeconfigError;
use crate::kube::{ApiError, ApiFault};
use crate::node_name::NodeNameError;
use crate::store::StoreError;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::of(Code::Store, &error, error.remedy())
    }
}

impl From<NodeNameError> for Failure {
    fn from(error: NodeNameError) -> Self {
        let code = match &error {
            NodeNameError::Unusable { .. } => Code::Configuration,
            NodeNameError::Mismatch { .. } => Code::NodeName,
        };
        // The text of the error contains the remedy.
        Self::of(code, &error, "")
    }
}

impl From<AttesterError> for Failure {
    fn from(error: AttesterError) -> Self {
        Self::of(error.code(), &error, error.remedy())
    }
}

impl From<KubeconfigError> for Failure {
    fn from(error: KubeconfigError) -> Self {
        Self::of(Code::Configuration, &error, "correct that file")
    }
}

/// The failure for a bootstrap kubeconfig that is missing or invalid.
pub(super) fn bootstrap_failure(error: &KubeconfigError, path: &Path) -> Failure {
    let code = if error.is_not_found() {
        Code::Unauthorized
    } else {
        Code::Configuration
    };
    let remedy = format!(
        "put a kubeconfig with a bootstrap token at {}",
        path.display()
    );
    Failure::of(code, error, remedy)
}

impl From<IssuedError> for Failure {
    fn from(error: IssuedError) -> Self {
        let remedy = "ask whoever runs the signer; the next run asks for another certificate";
        Self::of(Code::Failed, &error, remedy)
    }
}

/// The failure for a request with the stored certificate. `bootstrap` is the path of the bootstrap
/// kubeconfig.
pub(super) fn certificate_failure(error: EnrolmentError, bootstrap: &Path) -> Failure {
    match &error {
        EnrolmentError::Api(
            error @ ApiError {
                fault: ApiFault::Forbidden(_) | ApiFault::Refused { .. },
                ..
            },
        ) => Failure::of(Code::Refused, error, refused_certificate(bootstrap)),
        EnrolmentError::Api(_) | EnrolmentError::NameConflict { .. } => error.into(),
    }
}

/// The remedy for a certificate that is in date but refused.
pub(super) fn refused_certificate(bootstrap: &Path) -> String {
    format!(
        "see whether the node's certificate was revoked or is not its record's; if the machine is the \
         right one, run `node-attestation-controller identities reset`, and put a kubeconfig with a \
         bootstrap token at {}",
        bootstrap.display()
    )
}

impl From<EnrolmentError> for Failure {
    fn from(error: EnrolmentError) -> Self {
        match error {
            EnrolmentError::Api(error) => error.into(),
            EnrolmentError::NameConflict { .. } => Self::of(
                Code::Refused,
                &error,
                "find out who created it; the next run takes another name",
            ),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let (code, remedy) = match &error.fault {
            ApiFault::Unreachable { .. }
            | ApiFault::TimedOut { .. }
            | ApiFault::Server { .. }
            | ApiFault::TooManyRequests { .. } => (
                Code::Unreachable,
                "see that the API server runs and can be reached from here",
            ),
            ApiFault::Unauthorized { .. } => (
                Code::Unauthorized,
                "give this machine a new bootstrap token; tokens expire",
            ),
            ApiFault::Tls { .. } => (
                Code::Unreachable,
                "see that the kubeconfig names this cluster's server and CA",
            ),
            ApiFault::NotAnApiServer { .. }
            | ApiFault::TooLarge { .. }
            | ApiFault::NotAnObject { .. }
            | ApiFault::Malformed { .. } => (
                Code::Unreachable,
                "see that the kubeconfig's server is an API server and no proxy stands in between",
            ),
            ApiFault::Forbidden { .. } | ApiFault::Refused { .. } => (
                Code::Refused,
                "see that the group of the bootstrap token is bound to system:node-bootstrapper",
            ),
            ApiFault::ClockSkew { .. } => (Code::ClockSkew, "set this machine's clock by NTP"),
            ApiFault::Unusable { .. } => (Code::Configuration, "correct the kubeconfig"),
            ApiFault::Client { .. } => (Code::Internal, "report this as a bug"),
        };
        Self::of(code, &error, remedy)
    }
}
