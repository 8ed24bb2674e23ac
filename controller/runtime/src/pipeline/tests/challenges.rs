//! Tests of machines that answer a TPM challenge, and of the annotation that contains the endorsement key of that TPM.

use std::collections::BTreeMap;

use kubelet_attestation::evidence::tpm::{Challenge, ChallengeId, Expiry};
use kubelet_attestation::names::Provider;
use kubelet_attestation::version::EvidenceVersion;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::refusal::Refusal;
use node_attestation_core::testing::{cluster, now, valid};
use node_attestation_core::verifier::{
    Appraisal, Assurance, AttestedIdentity, Identity, Verifier, Verifiers,
};

use crate::csr_writer::testing::{MemoryStore, UID};
use crate::pipeline::*;

const CHALLENGE: &str = "attestation.cluster.x-k8s.io/tpm-challenge";
const ENDORSEMENT_KEY: &str = "cluster.x-k8s.io/tpm-endorsement-key";

fn endorsement_key() -> KeyDigest {
    KeyDigest::of(b"endorsement key")
}

fn challenge() -> Challenge {
    Challenge {
        id: ChallengeId::new([7; 16]),
        expiry: Expiry::parse("2026-01-01T00:05:00Z").unwrap(),
        credential_blob: b"sealed".to_vec(),
        encrypted_secret: b"seed".to_vec(),
    }
}

/// The two phases of a request from a machine with a TPM.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Enrol,
    Respond,
}

#[derive(Debug)]
struct Tpm(Phase, [EvidenceVersion; 1]);

#[async_trait::async_trait]
impl Verifier for Tpm {
    fn provider(&self) -> &Provider {
        &Provider::NULL
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &self.1
    }

    async fn verify(
        &self,
        appraisal: Appraisal<'_>,
        _now: SystemTime,
    ) -> Result<Assurance, Refusal> {
        match self.0 {
            Phase::Enrol => Err(Failure::ChallengeIssued {
                detail: "7".to_owned(),
                annotations: vec![
                    (CHALLENGE, challenge().to_annotation()),
                    (ENDORSEMENT_KEY, endorsement_key().to_string()),
                ],
                endorsement_key: endorsement_key(),
            }
            .into()),
            Phase::Respond => Ok(Assurance::Attested(AttestedIdentity::vouched(Identity {
                endorsement_key: Some(endorsement_key()),
                ..Identity::of(appraisal.provider_id.clone())
            }))),
        }
    }
}

/// The answer to a request that has this endorsement key annotation.
async fn answered(phase: Phase, annotated: Option<&str>) -> CertificateSigningRequest {
    let verifier: Arc<dyn Verifier> = Arc::new(Tpm(phase, [EvidenceVersion::V1]));
    let context = Context {
        verifiers: Verifiers::from_iter([verifier]),
        ..cluster()
    };
    let mut request = valid();
    request.metadata.annotations =
        annotated.map(|key| [(ENDORSEMENT_KEY.to_owned(), key.to_owned())].into());
    let store = Arc::new(MemoryStore::new(request));
    let pipeline = Pipeline::new(context, store.clone(), Events::none(), now);
    let work = Work {
        name: "csr".to_owned(),
        uid: UID.to_owned(),
        object: Some(Box::new(store.request())),
        max_len: usize::MAX,
        attempts: 0,
    };

    assert_eq!(pipeline.process(work).await, Next::Done);
    store.request()
}

fn condition(request: &CertificateSigningRequest) -> (String, String) {
    let conditions = request.status.as_ref().unwrap().conditions.as_ref();
    let [condition] = conditions.unwrap().as_slice() else {
        panic!("{conditions:?}");
    };
    (condition.type_.clone(), condition.reason.clone().unwrap())
}

fn annotations(request: &CertificateSigningRequest) -> BTreeMap<String, String> {
    request.metadata.annotations.clone().unwrap_or_default()
}

#[tokio::test]
async fn a_challenge_fails_the_request_and_is_in_its_annotation() {
    let request = answered(Phase::Enrol, None).await;

    assert_eq!(
        condition(&request),
        ("Failed".to_owned(), "ChallengeIssued".to_owned())
    );
    let annotations = annotations(&request);
    assert_eq!(
        Challenge::parse(&annotations[CHALLENGE]).unwrap(),
        challenge()
    );
    assert_eq!(annotations[ENDORSEMENT_KEY], endorsement_key().to_string());
}

#[tokio::test]
async fn an_issued_request_is_annotated_with_the_endorsement_key() {
    let request = answered(Phase::Respond, None).await;

    assert_eq!(
        condition(&request),
        ("Approved".to_owned(), "NodeNameClaimed".to_owned())
    );
    assert!(request.status.as_ref().unwrap().certificate.is_some());
    assert_eq!(
        annotations(&request)[ENDORSEMENT_KEY],
        endorsement_key().to_string()
    );
}

#[tokio::test]
async fn a_foreign_endorsement_key_annotation_is_denied() {
    let own = endorsement_key().to_string();
    for phase in [Phase::Enrol, Phase::Respond] {
        let request = answered(phase, Some(&own)).await;
        assert_ne!(condition(&request).0, "Denied");

        for other in [
            KeyDigest::of(b"other").to_string(),
            own.to_uppercase(),
            String::new(),
        ] {
            let request = answered(phase, Some(&other)).await;
            assert_eq!(
                condition(&request),
                ("Denied".to_owned(), "EndorsementKeyAnnotation".to_owned()),
                "{phase:?} {other}"
            );
            assert_eq!(annotations(&request)[ENDORSEMENT_KEY], other);
        }
    }
}
