//! What evidence shows beside its answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_authenticator_test_support::ek_ca::vendors;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey as Kind, TpmMachine};
use node_attestation_core::verifier::{Findings, Verifier as _};

use super::super::TpmVerifier;
use crate::denial::TpmDenial;
use crate::fixture::{Case, Good, denied, digest, enrolment, machine, noon};
use crate::observations::Observations;
use kubelet_attestation::evidence::tpm::TpmEvidence;

const DAY: Duration = Duration::from_hours(24);

/// In sixty years: whatever was certified today is valid.
fn later() -> SystemTime {
    SystemTime::UNIX_EPOCH + 120 * 365 * DAY
}

fn findings(verifier: &TpmVerifier) -> Findings {
    verifier.findings(noon())
}

#[test]
fn unmeasured_firmware_is_reported_and_denied_under_a_pcr_policy() {
    let machine = TpmMachine::new(Arc::new(Swtpm::unmeasured()), Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    let good = Good::of(&machine, &case);
    let verifier = case.verifier();
    assert_eq!(findings(&verifier).unmeasured, Some(0));

    let evidence = TpmEvidence::Respond(good.response.clone()).to_json();
    assert!(case.decide_by(&verifier, Some(&evidence)).is_ok());

    assert_eq!(findings(&verifier).unmeasured, Some(1));
    // The policy does not have to name a register of the firmware.
    let state = [("12".to_owned(), "0".repeat(64))];
    case.settings.pcr_policy.allowed = vec![state.into()];
    assert_eq!(
        denied(case.respond(&good.response)),
        TpmDenial::RegisterNotMeasured(0)
    );
}

#[test]
fn a_machine_whose_firmware_measures_is_not_found() {
    let case = Case::valid();
    let verifier = case.verifier();
    let good = Good::of(&machine(), &case);

    let evidence = TpmEvidence::Respond(good.response).to_json();
    assert!(case.decide_by(&verifier, Some(&evidence)).is_ok());

    assert_eq!(findings(&verifier).unmeasured, Some(0));
}

#[test]
fn an_expiring_required_endorsement_certificate_is_reported() {
    let machine = machine();
    let mut case = Case::valid();
    case.now = later();
    let (soon, far) = (later() + 60 * DAY, later() + 400 * DAY);
    let issued = vendors::ending(&machine.ek_spki(), soon, far);
    let mut enrolment = enrolment(&machine);
    enrolment.certificate = Some(issued.certificate.clone());
    let evidence = TpmEvidence::Enrol(enrolment).to_json();
    let asked = |case: &Case| {
        let verifier = case.verifier();
        assert!(
            case.decide_by(&verifier, Some(&evidence)).is_err(),
            "it is challenged"
        );
        verifier.findings(later()).expiring
    };

    assert_eq!(asked(&case), None);
    case.settings.endorsement_keys.require_ca = vec![issued.root_pem()];
    let found = asked(&case).unwrap();

    assert_eq!(found.at, soon);
    assert!(
        found.subject.ends_with(" of CN=an ending root"),
        "{}",
        found.subject
    );
    // The machine of another key is denied, and its certificate tells nothing.
    case.settings.endorsement_keys.allow_list[0].ek_sha256 = "0f".repeat(32);
    assert_eq!(asked(&case), None);
}

#[test]
fn the_verifiers_of_a_cluster_share_what_they_observe() {
    let machine = TpmMachine::new(Arc::new(Swtpm::unmeasured()), Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    let good = Good::of(&machine, &case);
    let observations = Arc::new(Observations::default());
    let [before, after] = [(), ()].map(|()| case.verifier().observing(observations.clone()));

    let evidence = TpmEvidence::Respond(good.response).to_json();
    assert!(case.decide_by(&before, Some(&evidence)).is_ok());

    assert_eq!(findings(&after).unmeasured, Some(1));
}
