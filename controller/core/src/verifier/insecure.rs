//! Machines without evidence.

use std::time::SystemTime;

use kubelet_attestation::names::Provider;
use kubelet_attestation::version::EvidenceVersion;

use super::{Appraisal, Assurance, Identity, Verifier};
use crate::refusal::Refusal;

/// The verifier for machines without evidence. It accepts the machine that owns the bootstrap token. It also accepts
/// the machine of an existing Node, if the Node sends its own certificate. The result is always [`Assurance::None`].
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
        // A machine with a bootstrap token was found by its token. The machine of an existing Node was found by its
        // provider ID, and its name is checked later.
        let identity = Identity::of(appraisal.provider_id.clone());
        Ok(Assurance::None(identity))
    }
}
