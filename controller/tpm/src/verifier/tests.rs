//! Tests of both requests of a join, and of the calls to services that they cause.

use std::sync::Arc;

use kubelet_attestation::evidence::tpm::TpmEvidence;
use kubelet_attestation::names::Audience;
use kubelet_authenticator_test_support::tpm_machine::{
    AttestationKey, EndorsementKey as Kind, TpmMachine,
};
use node_attestation_core::refusal::{Deferral, Denial, Refusal};

use super::*;
use crate::fixture::{ANOTHER, Case, FakePlatform, GOOD, Good, denied, digest, machine, noon};

mod banks;
mod challenges;
mod findings;
mod foresight;
mod hosts;
mod keys;
mod mutations;
mod quotes;
mod sources;

#[test]
fn a_machine_is_attested_with_each_kind_of_key() {
    for endorsement in Kind::ALL {
        for attestation in [AttestationKey::ecdsa(), AttestationKey::rsassa()] {
            let machine = machine()
                .with_endorsement_key(endorsement)
                .with_attestation_key(attestation);
            let mut case = Case::of_nobody();
            case.allow("m1", digest(&machine));
            let good = Good::of(&machine, &case);

            let attested = case.proves(&good.response);

            let identity = attested.identity();
            assert_eq!(identity.endorsement_key, Some(digest(&machine)));
            assert_eq!(identity.provider_id.as_str(), case.provider_id);
            assert_eq!((&identity.node_name, &identity.instance), (&None, &None));
            let boot = identity.boot.unwrap();
            let clock = machine.tpm().clock();
            assert_eq!(boot.resets, clock.reset_count);
            assert_eq!(boot.restarts, clock.restart_count);
            assert!(boot.clock <= clock.clock && boot.clock > 0);
        }
    }
}

#[test]
fn every_replica_makes_the_same_decision_about_a_response() {
    let case = Case::valid();
    let once = case.verifier();
    let evidence = TpmEvidence::Respond(GOOD.response.clone()).to_json();
    for verifier in [&once, &once, &case.verifier()] {
        let decided = case.decide_by(verifier, Some(&evidence));

        assert!(matches!(decided, Ok(Assurance::Attested(_))), "{decided:?}");
    }
}

#[test]
fn evidence_that_is_missing_or_undecodable_is_denied() {
    let case = Case::valid();
    let missing = case.decide_bytes(None);
    assert!(
        matches!(missing, Err(Refusal::Deny(Denial::EvidenceMissing))),
        "{missing:?}"
    );
    let good = String::from_utf8(TpmEvidence::Respond(GOOD.response.clone()).to_json()).unwrap();
    for field in [
        "ekPub",
        "akPub",
        "id",
        "expiry",
        "quote",
        "attest",
        "signature",
        "pcrs",
    ] {
        let renamed = good.replacen(&format!("\"{field}\""), "\"other\"", 1);
        assert_ne!(renamed, good);
        let malformed = case.decide_bytes(Some(renamed.as_bytes()));
        assert!(
            matches!(
                malformed,
                Err(Refusal::Deny(Denial::EvidenceMalformed { .. }))
            ),
            "{field}: {malformed:?}"
        );
    }
}

#[test]
fn evidence_for_another_cluster_is_denied() {
    let mut case = Case::valid();
    case.audiences = vec![Audience::parse("test").unwrap()];
    for decided in [case.enrol(&GOOD.enrolment), case.respond(&GOOD.response)] {
        assert!(
            matches!(&decided, Err(Refusal::Deny(Denial::AudienceMismatch(audience))) if audience.as_str() == "prod"),
            "{decided:?}"
        );
    }
}

#[test]
fn the_inventory_machine_is_used_instead_of_the_claim() {
    let mut claims_another = Case::valid();
    claims_another.provider_id = "metal:///rack-1/8";
    let mut nameless = Case::valid();
    nameless.machine.provider_id = None;
    for evidence in [
        TpmEvidence::Enrol(GOOD.enrolment.clone()),
        TpmEvidence::Respond(GOOD.response.clone()),
    ] {
        let denied = claims_another.decide(&evidence);
        assert!(
            matches!(&denied, Err(Refusal::Deny(Denial::AnotherMachine { .. }))),
            "{denied:?}"
        );
        let waits = nameless.decide(&evidence);
        assert!(
            matches!(&waits, Err(Refusal::Retry(Deferral::MachineNotReady(machine))) if machine == "m1"),
            "{waits:?}"
        );
    }
}

#[test]
fn requests_wait_without_challenge_keys() {
    #[derive(Debug)]
    struct NoKeys;
    impl ChallengeKeySource for NoKeys {
        fn keys(&self) -> Result<Arc<ChallengeKeys>, Unavailable> {
            Err(Unavailable::new("the Secret is missing"))
        }
    }

    let case = Case::valid();
    let verifier = TpmVerifier {
        keys: Arc::new(NoKeys),
        ..case.verifier()
    };
    for evidence in [
        TpmEvidence::Enrol(GOOD.enrolment.clone()),
        TpmEvidence::Respond(GOOD.response.clone()),
    ] {
        let decided = case.decide_by(&verifier, Some(&evidence.to_json()));
        assert!(
            matches!(
                decided,
                Err(Refusal::Retry(Deferral::VerifierUnavailable { .. }))
            ),
            "{decided:?}"
        );
    }
}

#[test]
fn the_tpm_verifier_supports_v1_and_v2() {
    let verifier = Case::valid().verifier();

    assert_eq!(verifier.provider(), &Provider::TPM);
    assert_eq!(
        verifier.versions(),
        [EvidenceVersion::V2, EvidenceVersion::V1]
    );
}

#[test]
fn the_tpm_verifier_lists_its_denial_reasons() {
    let verifier = Case::valid().verifier();

    assert_eq!(verifier.denials(), TpmDenial::CATALOGUE);
}
