//! Checks of the attestation provider and of the required evidence.

use kubelet_attestation::evidence::version_of;
use kubelet_attestation::names::Provider;

use crate::refusal::{Denial, Failure, Refusal};
use crate::verifier::Verifier;

/// Checks that the signer, the provider block and the verifier belong to the same provider.
///
/// Without this check, evidence for a weak provider could produce a certificate from the signer of a strong provider.
/// The block is optional if the provider does not use evidence.
pub(crate) fn of_signer(
    signer: &Provider,
    claimed: Option<&Provider>,
    verifier: &dyn Verifier,
) -> Result<(), Denial> {
    let claims_signer = match claimed {
        Some(claimed) => claimed == signer,
        None => verifier.versions().is_empty(),
    };
    if claims_signer && verifier.provider() == signer {
        Ok(())
    } else {
        Err(Denial::ProviderMismatch {
            signer: signer.clone(),
            claimed: claimed.cloned(),
        })
    }
}

/// Checks that evidence exists if and only if the provider requires it, and that the verifier supports its version.
pub(crate) fn readable(evidence: Option<&[u8]>, verifier: &dyn Verifier) -> Result<(), Refusal> {
    let supported = verifier.versions();
    match evidence {
        None if supported.is_empty() => Ok(()),
        None => Err(Denial::EvidenceMissing.into()),
        Some(_) if supported.is_empty() => Err(Denial::EvidenceUnexpected.into()),
        Some(evidence) => {
            let version = version_of(evidence)
                .map_err(|error| Denial::EvidenceMalformed(error.to_string()))?;
            if supported.contains(&version) {
                Ok(())
            } else {
                Err(Failure::UnsupportedAttestationVersion {
                    version,
                    supported: supported.to_vec(),
                }
                .into())
            }
        }
    }
}
