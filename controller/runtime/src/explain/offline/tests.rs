use std::time::UNIX_EPOCH;

use futures::executor::block_on;
use kubelet_attestation::names::NodeName;
use node_attestation_core::inventory::Machine;

use super::*;

/// A verifier that needs to call a service.
#[derive(Debug)]
struct Asking(Provider);

#[async_trait::async_trait]
impl Verifier for Asking {
    fn provider(&self) -> &Provider {
        &self.0
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[EvidenceVersion::V1]
    }

    async fn verify(&self, _: Appraisal<'_>, _: SystemTime) -> Result<Assurance, Refusal> {
        let not_called = Unavailable::new(NotCalled("somebody"));
        Err(Deferral::VerifierUnavailable(not_called).into())
    }
}

/// The result if a verifier for this provider appraises a request with this annotation, and the services that the
/// verifier did not call.
fn appraised(
    provider: &Provider,
    annotation: Option<&str>,
) -> (Option<Identity>, Option<NotCalled>) {
    let offline = Offline::default();
    let asking: Arc<dyn Verifier> = Arc::new(Asking(provider.clone()));
    let verifiers = offline.verifiers(Verifiers::from_iter([asking]), &[Provider::AWS]);
    let mut request = CertificateSigningRequest::default();
    if let Some(annotation) = annotation {
        let name = ENDORSEMENT_KEY_ANNOTATION.to_owned();
        request
            .annotations_mut()
            .insert(name, annotation.to_owned());
    }
    offline.begin(&request);
    let (provider_id, node_name) = (
        ProviderId::parse("metal:///rack/m1").unwrap(),
        NodeName::parse("n1").unwrap(),
    );
    let machine = Machine::new("m1");
    let appraisal = Appraisal {
        evidence: None,
        audiences: &[],
        provider_id: &provider_id,
        node_name: &node_name,
        spki: &[],
        machine: &machine,
        asked: UNIX_EPOCH,
    };
    let verifier = verifiers.of(provider).unwrap();
    let assurance = block_on(verifier.verify(appraisal, UNIX_EPOCH)).ok();
    (assurance.map(|it| it.identity().clone()), offline.taken())
}

#[test]
fn a_node_name_from_the_platform_is_assumed_while_offline() {
    let (identity, not_called) = appraised(&Provider::AWS, None);

    let identity = identity.unwrap();
    assert_eq!(identity.node_name, NodeName::parse("n1").ok());
    assert_eq!(identity.provider_id.as_str(), "metal:///rack/m1");
    assert_eq!(not_called, Some(NotCalled("somebody")));
}

#[test]
fn an_offline_tpm_key_is_assumed_only_if_the_request_names_it() {
    let key = "0f".repeat(32);

    let (named, not_called) = appraised(&Provider::TPM, Some(&key));
    let (unnamed, offline) = appraised(&Provider::TPM, None);

    let named = named.unwrap();
    assert_eq!(named.endorsement_key.map(|key| key.to_string()), Some(key));
    assert_eq!(named.node_name, None);
    assert_eq!(not_called, Some(NotCalled("somebody")));
    assert_eq!((unnamed, offline), (None, None));
}
