//! Authorized attestation providers that the controller cannot use.

use kubelet_attestation::names::Provider;

use crate::crd::conditions::reason;
use crate::refusal::{Deferral, Unavailable};

/// The reason why an authorized attestation provider is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifierUnavailable {
    /// This controller does not have a verifier for the provider.
    #[error("this controller has no verifier for the attestor {0:?}")]
    Unknown(String),
    /// The controller admits machines without evidence only with a command-line flag, which is not set.
    #[error("insecure is authorized, but this controller runs without --allow-insecure")]
    InsecureNotAllowed,
    /// The controller's settings make the attestation provider unusable.
    #[error("the attestor {attestor} is authorized, but this controller cannot use it: {why}")]
    Unusable {
        /// The name of the attestation provider.
        attestor: &'static str,
        /// The reason, for operators.
        why: String,
    },
}

impl VerifierUnavailable {
    /// The reason for the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unknown(_) => reason::ATTESTOR_UNKNOWN,
            Self::InsecureNotAllowed => reason::INSECURE_NOT_ALLOWED,
            Self::Unusable { .. } => reason::ATTESTOR_UNUSABLE,
        }
    }

    /// Whether the message of the condition `AttestorsAvailable` names this attestation provider.
    pub fn is_in(message: &str, attestor: &str) -> bool {
        let unknown = Self::Unknown(attestor.to_owned()).to_string();
        let unusable =
            format!("the attestor {attestor} is authorized, but this controller cannot use it: ");
        let is_insecure = attestor == Self::InsecureNotAllowed.attestor();
        let not_allowed = Self::InsecureNotAllowed.to_string();
        [unknown, unusable]
            .iter()
            .any(|text| message.contains(text.as_str()))
            || is_insecure && message.contains(&not_allowed)
    }

    /// The name of the attestation provider, as written in the custom resource.
    pub(super) fn attestor(&self) -> &str {
        match self {
            Self::Unknown(attestor) => attestor,
            Self::InsecureNotAllowed => "insecure",
            Self::Unusable { attestor, .. } => attestor,
        }
    }

    /// The attestation provider. `None` if the name is not a valid provider name.
    pub(super) fn provider(&self) -> Option<Provider> {
        Provider::parse(self.attestor()).ok()
    }
}

impl From<&VerifierUnavailable> for Deferral {
    fn from(why: &VerifierUnavailable) -> Self {
        Self::VerifierUnavailable(Unavailable::new(why.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verifier::Verifiers;

    #[test]
    fn the_condition_message_names_exactly_the_unavailable_attestors() {
        let unusable = VerifierUnavailable::Unusable {
            attestor: "aws",
            why: "tpm".to_owned(),
        };
        let all = [
            VerifierUnavailable::Unknown("contoso".to_owned()),
            VerifierUnavailable::InsecureNotAllowed,
            unusable,
        ];
        for why in &all {
            let alone: Verifiers = [Err(why.clone())].into_iter().collect();
            let message = alone.availability().message;
            for other in &all {
                let is_named = VerifierUnavailable::is_in(&message, other.attestor());
                assert_eq!(is_named, why == other, "{message}");
            }
            assert!(!VerifierUnavailable::is_in(&message, "tpm"), "{message}");
        }
        let together: Verifiers = all.iter().cloned().map(Err).collect();
        let message = together.availability().message;
        for why in &all {
            assert!(
                VerifierUnavailable::is_in(&message, why.attestor()),
                "{message}"
            );
        }
    }
}
