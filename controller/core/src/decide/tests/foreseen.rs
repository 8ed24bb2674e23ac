//! Tests of predictions for existing Nodes.

use std::sync::Arc;

use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;

use super::adoption::{cluster, denied, stock};
use super::*;
use crate::ledger::Adoption;
use crate::refusal::Unavailable;
use crate::verifier::{Appraisal, Assurance, Foresight, Identity, Verifier, Verifiers};

/// A verifier whose platform reports Node names. The tests must not call the verifier.
#[derive(Debug)]
struct Uncalled;

#[async_trait::async_trait]
impl Verifier for Uncalled {
    fn provider(&self) -> &Provider {
        &Provider::NULL
    }

    fn versions(&self) -> &[EvidenceVersion] {
        &[EvidenceVersion::V1]
    }

    async fn verify(&self, _: Appraisal<'_>, _: SystemTime) -> Result<Assurance, Refusal> {
        Err(Denial::EvidenceMissing.into())
    }

    async fn foresee(
        &self,
        _: &Machine,
        provider_id: &ProviderId,
        _: SystemTime,
    ) -> Result<Foresight, Refusal> {
        let unknown = Some(Unavailable::new("not called"));
        Ok(Foresight {
            unknown,
            ..Foresight::of(Identity::of(provider_id.clone()))
        })
    }
}

fn foreseen(
    node: &str,
    provider_id: Option<&str>,
    context: &Context,
    provider: &Provider,
) -> Foreseen {
    let node = NodeName::parse(node).unwrap();
    let provider_id = provider_id.map(|id| ProviderId::parse(id).unwrap());
    let all = block_on(foresee(&node, provider_id.as_ref(), context, now()));
    let mut all = all.into_iter();
    all.find(|one| one.provider == *provider).unwrap()
}

fn reason(foreseen: &Foreseen) -> Option<&'static str> {
    Some(match foreseen.refusal.as_ref()? {
        Refusal::Deny(denial) => denial.reason(),
        Refusal::Fail(failure) => failure.reason(),
        Refusal::Retry(deferral) => deferral.reason(),
    })
}

#[test]
fn a_prediction_has_the_reason_of_the_decision_on_the_request() {
    use Adoption::{Allow, AllowWithoutEvidence, Refuse};
    for (adoption, machine, expected) in [
        (AllowWithoutEvidence, "m1", None),
        (Refuse, "m1", Some("RequesterUidMissing")),
        (Allow, "m1", Some("RequesterUidMissing")),
        (AllowWithoutEvidence, "m2", Some("NodeNameMismatch")),
    ] {
        let id = format!("metal:///rack/{machine}");

        let predicted = foreseen("n1", Some(&id), &cluster(adoption), &Provider::INSECURE);

        assert_eq!(reason(&predicted), expected, "{adoption:?} {predicted:?}");
        if let Some(expected) = expected {
            assert_eq!(denied(&stock(&id), &cluster(adoption)), expected);
        }
    }
    let unknown = Some("metal:///rack/m9");
    let predicted = foreseen("n1", unknown, &cluster(Allow), &Provider::INSECURE);
    assert_eq!(reason(&predicted), Some("MachineNotFound"));
    assert!(predicted.machine.is_none(), "{predicted:?}");
}

#[test]
fn a_prediction_with_evidence_depends_on_the_setting_for_adoption() {
    for (adoption, expected) in [
        (Adoption::Allow, None),
        (Adoption::Refuse, Some("RequesterUidMissing")),
    ] {
        let id = Some("metal:///rack/m1");

        let predicted = foreseen("n1", id, &cluster(adoption), &Provider::NULL);

        assert_eq!(reason(&predicted), expected, "{predicted:?}");
        assert!(predicted.unknown.is_none(), "{predicted:?}");
    }
}

#[test]
fn a_node_without_a_provider_id_is_predicted_by_its_name() {
    let allowed = cluster(Adoption::Allow);

    let predicted = foreseen("n1", None, &allowed, &Provider::NULL);

    assert_eq!(reason(&predicted), None);
    let identity = predicted.identity.unwrap();
    assert_eq!(identity.provider_id.as_str(), "metal:///rack/m1");
    let stranger = foreseen("n9", None, &allowed, &Provider::NULL);
    assert_eq!(reason(&stranger), Some("MachineNotFound"));
}

#[test]
fn an_unavailable_service_leaves_a_prediction_open_and_a_denial_ends_it() {
    let id = ProviderId::parse("metal:///rack/m1").unwrap();
    let mut foresight = Foresight::of(Identity::of(id));
    let unavailable = Deferral::VerifierUnavailable(Unavailable::new("no answer"));

    assert_eq!(foresight.and(Ok(1)).unwrap(), Some(1));
    assert!(foresight.unknown.is_none());
    assert_eq!(foresight.and::<u8>(Err(unavailable.into())).unwrap(), None);
    assert!(foresight.unknown.is_some());
    let denied = foresight.and::<u8>(Err(Denial::EvidenceMissing.into()));
    assert!(
        matches!(denied, Err(Refusal::Deny(Denial::EvidenceMissing))),
        "{denied:?}"
    );
}

#[test]
fn a_name_is_not_predicted_while_the_platform_is_not_called() {
    let uncalled: Arc<dyn Verifier> = Arc::new(Uncalled);
    let context = Context {
        verifiers: Verifiers::from_iter([uncalled]),
        ..cluster(Adoption::Allow)
    };

    let predicted = foreseen("n1", Some("metal:///rack/m2"), &context, &Provider::NULL);

    assert_eq!(reason(&predicted), None);
    assert!(predicted.unknown.is_some(), "{predicted:?}");
}
