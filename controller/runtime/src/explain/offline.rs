//! Verifiers that do not call a service.

use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt as _;
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;
use kubelet_attestation::names::{Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::identifiers::{KeyDigest, ServingName};
use node_attestation_core::inventory::Machine;
use node_attestation_core::refusal::{Deferral, NotCalled, Refusal, Unavailable};
use node_attestation_core::unshared::Unshared;
use node_attestation_core::verifier::{
    Appraisal, Assurance, AttestedIdentity, Foresight, Identity, Verifier, Verifiers,
};

/// The check that verifies evidence.
pub(super) const CHECK: &str = "evidence";

/// The services that were not called for the current request's evidence. The command explains one request at a time.
#[derive(Debug, Clone, Default)]
pub(super) struct Offline(Arc<Unshared<State>>);

#[derive(Debug, Default)]
struct State {
    not_called: Option<NotCalled>,
    /// The endorsement key in the request's annotation.
    annotated: Option<KeyDigest>,
}

impl Offline {
    /// Resets the state for this request.
    pub(super) fn begin(&self, request: &CertificateSigningRequest) {
        let annotation = request.annotations().get(ENDORSEMENT_KEY_ANNOTATION);
        *self.0.lock() = State {
            not_called: None,
            annotated: annotation.and_then(|text| KeyDigest::parse(text).ok()),
        };
    }

    pub(super) fn taken(&self) -> Option<NotCalled> {
        self.0.lock().not_called
    }

    /// Wraps the verifiers. If an appraisal depends on a service that is not called, the wrapped verifier accepts the
    /// evidence. `names_nodes` lists the providers whose platform reports the names of Nodes.
    pub(super) fn verifiers(&self, verifiers: Verifiers, names_nodes: &[Provider]) -> Verifiers {
        verifiers.map(|verifier| {
            Arc::new(Unproved {
                names_nodes: names_nodes.contains(verifier.provider()),
                verifier,
                offline: self.clone(),
            })
        })
    }
}

/// Accepts evidence that was not refuted. This type is private to the module, because a certificate must never be
/// issued on the basis of its result.
#[derive(Debug)]
struct Unproved {
    verifier: Arc<dyn Verifier>,
    names_nodes: bool,
    offline: Offline,
}

#[async_trait::async_trait]
impl Verifier for Unproved {
    fn provider(&self) -> &Provider {
        self.verifier.provider()
    }

    fn versions(&self) -> &[EvidenceVersion] {
        self.verifier.versions()
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        let appraised = self.verifier.verify(appraisal, now).await;
        let Err(Refusal::Retry(Deferral::VerifierUnavailable(source))) = &appraised else {
            return appraised;
        };
        let Some(not_called) = source.cause::<NotCalled>() else {
            return appraised;
        };
        let mut state = self.offline.0.lock();
        let endorsement_key = state.annotated;
        // Without the endorsement key, the TPM cannot be compared with the machine's record.
        if *self.provider() == Provider::TPM && endorsement_key.is_none() {
            return appraised;
        }
        state.not_called = Some(*not_called);
        let node_name = self.names_nodes.then(|| appraisal.node_name.clone());
        let identity = Identity {
            node_name,
            endorsement_key,
            ..Identity::of(appraisal.provider_id.clone())
        };
        Ok(Assurance::Attested(AttestedIdentity::vouched(identity)))
    }

    async fn foresee(
        &self,
        machine: &Machine,
        provider_id: &ProviderId,
        now: SystemTime,
    ) -> Result<Foresight, Refusal> {
        self.verifier.foresee(machine, provider_id, now).await
    }

    fn accepts_late_provider_ids(&self) -> bool {
        self.verifier.accepts_late_provider_ids()
    }

    async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        self.verifier.serving_names(provider_id).await
    }
}

#[cfg(test)]
mod tests;
