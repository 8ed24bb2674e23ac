//! Machines that can prove nothing.

use std::time::SystemTime;

use futures::future::{BoxFuture, FutureExt as _, ready};
use kubelet_attestation::names::Provider;
use kubelet_attestation::version::EvidenceVersion;

use super::{Appraisal, Assurance, Identity, Verifier};
use crate::refusal::Refusal;

/// Takes the word of the bootstrap token, or of the certificate of a Node that joined before, for the
/// machine; what it admits is [`Assurance::None`].
#[derive(Debug, Clone, Copy, Default)]
pub struct InsecureVerifier;

impl Verifier for InsecureVerifier {
    fn provider(&self) -> &Provider {
        &Provider::INSECURE
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[]
    }

    fn verify<'a>(
        &'a self,
        appraisal: Appraisal<'a>,
        _now: SystemTime,
    ) -> BoxFuture<'a, Result<Assurance, Refusal>> {
        // A machine without evidence was located by its bootstrap token; that of a Node which joined
        // before, by its provider ID, and its name is still to be settled.
        let identity = Identity::of(appraisal.provider_id.clone());
        ready(Ok(Assurance::None(identity))).boxed()
    }
}
