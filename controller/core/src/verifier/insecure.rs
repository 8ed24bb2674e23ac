//! Machines that can prove nothing.

use std::time::SystemTime;

use kubelet_attestation::names::Provider;
use kubelet_attestation::version::EvidenceVersion;

use super::{Appraisal, Assurance, Identity, Verifier};
use crate::refusal::Refusal;

/// Takes the word of the bootstrap token, or of the certificate of a Node that joined before, for the
/// machine; what it admits is [`Assurance::None`].
#[derive(Debug, Clone, Copy, Default)]
pub struct InsecureVerifier;

#[async_trait::async_trait]
impl Verifier for InsecureVerifier {
    fn provider(&self) -> &Provider {
        &Provider::INSECURE
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[]
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        _now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        // A machine without evidence was located by its bootstrap token; that of a Node which joined
        // before, by its provider ID, and its name is still to be settled.
        let identity = Identity::of(appraisal.provider_id.clone());
        Ok(Assurance::None(identity))
    }
}
