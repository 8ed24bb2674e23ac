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
pub(crate) fn bootstrap_failure(error: &KubeconfigError, path: &Path) -> Failure {
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
pub(super) fn certificate_failure(error: ApiError, bootstrap: &Path) -> Failure {
    if matches!(error.kind, ApiErrorKind::Forbidden | ApiErrorKind::Refused) {
        Failure::of(Code::Refused, &error, refused_certificate(bootstrap))
    } else {
        error.into()
    }
}

/// The remedy for a certificate that is in date but refused.
pub(crate) fn refused_certificate(bootstrap: &Path) -> String {
    format!(
        "see whether the node's certificate was revoked or is not its record's; if the machine is the \
         right one, run `node-attestation-controller identities reset`, and put a kubeconfig with a \
         bootstrap token at {}",
        bootstrap.display()
    )
}
