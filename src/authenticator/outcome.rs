//! The result of a run after its last request is decided.

use kubelet_attestation::evidence::tpm::InvalidChallenge;
use kubelet_attestation::version::EvidenceVersion;

use super::negotiation::Negotiation;
use crate::failure::{Code, Failure};
use crate::kube::CsrState;
use crate::pending::OpenRequest;
use crate::reasons;

impl Negotiation<'_> {
    /// The issued chain, or the failure, from the decision on `open`.
    pub(super) fn conclude(
        self,
        open: &OpenRequest,
        decision: Option<CsrState>,
    ) -> Result<String, Failure> {
        let name = &open.name;
        let failure = match decision {
            Some(CsrState::Issued { chain_pem }) => return Ok(chain_pem),
            Some(CsrState::Pending) => {
                return Err(Failure::new(
                    Code::Pending,
                    format!("request {name} is still pending"),
                    "check why node-attestation-controller does not decide it; the next run waits \
                     for the same request",
                ));
            }
            Some(CsrState::Denied { reason, message }) => {
                denied(open, &reason, &message, reasons::remedy(&reason))
            }
            Some(CsrState::Failed {
                reason, message, ..
            }) => Failure::new(
                Code::Failed,
                format!("request {name} failed ({reason}): {message}"),
                "the next run creates another request; ".to_owned() + &reasons::remedy(&reason),
            ),
            None => Failure::new(
                Code::Failed,
                format!("request {name} was deleted before a decision"),
                "the next run creates another request",
            ),
        };
        self.pending.drop_request(self.store)?;
        Err(failure)
    }
}

/// The failure for a denied request.
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
            "the controller does not support evidence version {ours}, but supports: {}; its message: {message}",
            EvidenceVersion::list(supported)
        ),
        "install releases of the plugin and the controller that support a common evidence version",
    )
}

/// The failure for a challenge that cannot be parsed. The next run creates another request, and so gets another
/// challenge.
pub(super) fn unreadable_challenge(open: &OpenRequest, error: &InvalidChallenge) -> Failure {
    Failure::new(
        Code::Failed,
        format!("request {} has an invalid challenge: {error}", open.name),
        "install compatible releases of the plugin and the controller",
    )
}
