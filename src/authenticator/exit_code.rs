//! Exit codes and remedies of errors.

use std::path::Path;

use crate::failure::{Code, Failure, Invalid};
use crate::kube::kubeconfig::KubeconfigError;
use crate::kube::{ApiError, ApiErrorKind};

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

/// The failure for an issued certificate that cannot be used.
pub(super) fn invalid_certificate(error: &Invalid) -> Failure {
    let remedy = "ask whoever runs the signer; the next run asks for another certificate";
    Failure::of(Code::Failed, error, remedy)
}

/// The failure for a request with the stored certificate. `bootstrap` is the path of the bootstrap
/// kubeconfig.
pub(super) fn certificate_failure(error: &ApiError, bootstrap: &Path) -> Failure {
    if matches!(error.kind, ApiErrorKind::Forbidden | ApiErrorKind::Refused) {
        Failure::of(Code::Refused, error, refused_certificate(bootstrap))
    } else {
        error.into()
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

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        (&error).into()
    }
}

impl From<&ApiError> for Failure {
    fn from(error: &ApiError) -> Self {
        let (code, remedy) = match error.kind {
            ApiErrorKind::Unreachable
            | ApiErrorKind::TimedOut
            | ApiErrorKind::Server
            | ApiErrorKind::TooManyRequests => (
                Code::Unreachable,
                "see that the API server runs and can be reached from here",
            ),
            ApiErrorKind::Unauthorized => (
                Code::Unauthorized,
                "give this machine a new bootstrap token; tokens expire",
            ),
            ApiErrorKind::Tls => (
                Code::Unreachable,
                "see that the kubeconfig names this cluster's server and CA",
            ),
            ApiErrorKind::NotAnApiServer => (
                Code::Unreachable,
                "see that the kubeconfig's server is an API server and no proxy stands in between",
            ),
            ApiErrorKind::Forbidden | ApiErrorKind::Refused => (
                Code::Refused,
                "see that the group of the bootstrap token is bound to system:node-bootstrapper",
            ),
            ApiErrorKind::NameConflict => (
                Code::Refused,
                "find out who created it; the next run takes another name",
            ),
            ApiErrorKind::ClockSkew => (Code::ClockSkew, "set this machine's clock by NTP"),
            ApiErrorKind::Unusable => (Code::Configuration, "correct the kubeconfig"),
            ApiErrorKind::Client => (Code::Internal, "report this as a bug"),
        };
        Self::of(code, error, remedy)
    }
}
