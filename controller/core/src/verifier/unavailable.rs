//! Authorized attestors that a controller cannot use.

use kubelet_attestation::names::Provider;

use crate::crd::conditions::reason;
use crate::refusal::{Deferral, Unavailable};

/// An authorized attestor is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifierUnavailable {
    /// This controller has no such verifier.
    #[error("this controller has no verifier for the attestor {0:?}")]
    Unknown(String),
    /// Only the flag of the controller admits machines that prove nothing.
    #[error("insecure is authorized, and this controller runs without --allow-insecure")]
    InsecureNotAllowed,
    /// It is unavailable with the settings of this controller.
    #[error("the attestor {attestor} is authorized, and this controller cannot use it: {why}")]
    Unusable {
        /// The attestor.
        attestor: &'static str,
        /// Why, for the operator.
        why: String,
    },
}

impl VerifierUnavailable {
    /// The reason of a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unknown(_) => reason::ATTESTOR_UNKNOWN,
            Self::InsecureNotAllowed => reason::INSECURE_NOT_ALLOWED,
            Self::Unusable { .. } => reason::ATTESTOR_UNUSABLE,
        }
    }

    /// The attestor, as the resource has it.
    pub(super) fn attestor(&self) -> &str {
        match self {
            Self::Unknown(attestor) => attestor,
            Self::InsecureNotAllowed => "insecure",
            Self::Unusable { attestor, .. } => attestor,
        }
    }

    /// The provider of that name; `None` for a name that no signer has.
    pub(super) fn provider(&self) -> Option<Provider> {
        Provider::parse(self.attestor()).ok()
    }
}

impl From<&VerifierUnavailable> for Deferral {
    fn from(why: &VerifierUnavailable) -> Self {
        Self::VerifierUnavailable(Unavailable::new(why.clone()))
    }
}
