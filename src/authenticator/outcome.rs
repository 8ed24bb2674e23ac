//! The failures of a run whose request did not get a certificate.

use kubelet_attestation::evidence::tpm::InvalidChallenge;
use kubelet_attestation::version::EvidenceVersion;

use crate::failure::{Code, Failure};
use crate::pending::OpenRequest;

/// Returns the failure for a denied request.
pub(super) fn denied(
    open: &OpenRequest,
    reason: &str,
    message: &str,
    remedy: impl Into<String>,
) -> Failure {
    let name = &open.name;
    let what = format!("request {name} was denied ({reason}): {message}");
    Failure::new(Code::Denied, what, remedy)
}

pub(super) fn unsupported(
    ours: &EvidenceVersion,
    supported: &[EvidenceVersion],
    message: &str,
) -> Failure {
    Failure::new(
        Code::Version,
        format!(
            "the controller does not support evidence version {ours}, but supports: {}; the controller's message: \
             {message}",
            EvidenceVersion::list(supported)
        ),
        "install releases of the plugin and the controller that support a common evidence version",
    )
}

/// Returns the failure for a challenge that cannot be parsed. The next run creates another request, for which it gets
/// another challenge.
pub(super) fn unreadable_challenge(open: &OpenRequest, error: &InvalidChallenge) -> Failure {
    Failure::new(
        Code::Failed,
        format!("request {} has an invalid challenge: {error}", open.name),
        "install compatible releases of the plugin and the controller",
    )
}
