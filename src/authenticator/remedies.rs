//! Exit codes and hints for errors.

use std::path::Path;

use crate::failure::{Code, Failure, Invalid};
use crate::kube::kubeconfig::KubeconfigError;
use crate::kube::{ApiError, ApiErrorKind};

impl From<KubeconfigError> for Failure {
    fn from(error: KubeconfigError) -> Self {
        Self::of(Code::Configuration, &error, "correct that file")
    }
}

/// Returns the failure for a bootstrap kubeconfig that is missing or invalid.
pub(crate) fn bootstrap_failure(error: &KubeconfigError, path: &Path) -> Failure {
    let code = if error.is_absence_of(path) {
        Code::Unauthorized
    } else {
        Code::Configuration
    };
    let remedy = format!(
        "write a kubeconfig with a bootstrap token to {}",
        path.display()
    );
    Failure::of(code, error, remedy)
}

/// Returns the failure for a request with the bootstrap credential in `path`.
pub(crate) fn bootstrap_refused(error: ApiError, path: &Path) -> Failure {
    if error.kind == ApiErrorKind::Unauthorized {
        let remedy = format!(
            "write a kubeconfig with a new bootstrap token to {}",
            path.display()
        );
        Failure::of(Code::Unauthorized, &error, remedy)
    } else {
        error.into()
    }
}

/// Returns the failure for an issued certificate that cannot be used.
pub(super) fn invalid_certificate(error: &Invalid) -> Failure {
    let remedy = "check the configuration of the signer; the next run requests another certificate";
    Failure::of(Code::Failed, error, remedy)
}

/// Returns the failure for a request with the stored certificate. `bootstrap` is the path of the bootstrap
/// kubeconfig.
pub(super) fn certificate_failure(error: ApiError, bootstrap: &Path) -> Failure {
    if error.kind == ApiErrorKind::Forbidden {
        Failure::of(Code::Refused, &error, refused_certificate(bootstrap))
    } else {
        error.into()
    }
}

/// Returns the hint for this error from the API server, if the certificate has not expired.
pub(crate) fn unaccepted_certificate(error: &ApiError, bootstrap: &Path) -> String {
    if error.kind == ApiErrorKind::Unauthorized {
        format!(
            "check whether the cluster's CA was replaced; the next run enrolls again with the bootstrap token in {}",
            bootstrap.display()
        )
    } else {
        refused_certificate(bootstrap)
    }
}

/// Returns the hint for a certificate that the API server refuses, although it has not expired.
pub(crate) fn refused_certificate(bootstrap: &Path) -> String {
    format!(
        "check whether the certificate was revoked or does not match the node identity; if this is the right \
         machine, run `node-attestation-controller identities reset --yes CLUSTER NODE` (with --revoked if it was \
         revoked), and write a kubeconfig with a bootstrap token to {}",
        bootstrap.display()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubelet_authenticator_test_support::api_server::{ApiServer, Fault, Route, TOKEN, Times};

    use super::*;
    use crate::clock::Deadline;
    use crate::kube::ApiClient;
    use crate::kube::kubeconfig::{ClusterEndpoint, EndpointFields, Login};
    use crate::secret::Secret;

    /// The error of a run in which a call with the stored certificate returned this status.
    fn error(status: u16) -> ApiError {
        let server = ApiServer::start();
        server.inject(Route::get(), Times::always(), Fault::status(status));
        let fields = EndpointFields {
            server: server.url(),
            ca_pem: server.ca_pem().to_owned(),
            ..EndpointFields::default()
        };
        let endpoint = ClusterEndpoint::from_fields(fields, "a test").unwrap();
        let login = Login::Token(Secret::new(TOKEN.to_owned()));
        let client = ApiClient::connect(&endpoint, &login, &|_: &str| None).unwrap();
        let answer = client.get("csr-1", Deadline::after(Duration::from_secs(20)));
        answer.unwrap_err()
    }

    fn remedy(status: u16) -> String {
        let failure = certificate_failure(error(status), Path::new("/b"));
        failure.remedy().to_owned()
    }

    #[test]
    fn a_certificate_that_gets_a_401_suggests_a_replaced_ca() {
        let unknown = unaccepted_certificate(&error(401), Path::new("/b"));
        assert!(unknown.contains("CA was replaced"), "{unknown}");
        assert!(!unknown.contains("identities reset"), "{unknown}");

        let refused = unaccepted_certificate(&error(403), Path::new("/b"));
        assert!(refused.contains("identities reset"), "{refused}");
    }

    #[test]
    fn only_a_403_suggests_that_the_certificate_is_revoked() {
        assert!(remedy(403).contains("identities reset"));
        for status in [400, 422] {
            let remedy = remedy(status);
            assert!(remedy.contains("admission webhook"), "{status}: {remedy}");
            assert!(!remedy.contains("identities reset"), "{status}: {remedy}");
        }
    }
}
