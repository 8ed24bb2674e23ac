//! Tests of findings from evidence that do not affect the decision.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::ek_ca::{EkCa, EkContents, Flaw, vendors};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey as Kind, TpmMachine};
use node_attestation_core::verifier::{Findings, Verifier as _};

use super::super::TpmVerifier;
use crate::denial::TpmDenial;
use crate::fixture::{Case, Good, denied, digest, enrolment, machine, noon};
use crate::observations::Observations;
use kubelet_attestation::evidence::tpm::TpmEvidence;

const DAY: Duration = Duration::from_hours(24);

/// A time in 60 years, at which the certificates in these tests are still valid.
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
    // A policy does not need to contain firmware registers.
    let state = [("12".to_owned(), "0".repeat(64))];
    case.settings.pcr_policy.allowed = vec![state.into()];
    assert_eq!(
        denied(case.respond(&good.response)),
        TpmDenial::RegisterNotMeasured(0)
    );
}

#[test]
fn a_machine_with_measured_firmware_is_not_reported() {
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
    // A machine with a different key is denied, and its certificate does not affect the findings.
    case.settings.endorsement_keys.allow_list[0].ek_sha256 = "0f".repeat(32);
    assert_eq!(asked(&case), None);
}

/// Returns the denial by a verifier whose first request is this request, and the verifier's findings.
fn denied_after_start(
    case: &Case,
    certificate: &[u8],
    intermediates: &[Vec<u8>],
) -> (TpmDenial, Findings) {
    let mut enrolment = enrolment(&machine());
    enrolment.header.version = EvidenceVersion::V2;
    enrolment.certificate = Some(certificate.to_vec());
    enrolment.intermediates = intermediates.to_vec();
    let evidence = TpmEvidence::Enrol(enrolment).to_json();
    let verifier = case.verifier();
    let denial = denied(case.decide_by(&verifier, Some(&evidence)));
    (denial, verifier.findings(case.now))
}

#[test]
fn an_expired_endorsement_certificate_is_reported_again_after_a_restart() {
    let mut case = Case::valid();
    case.now = later();
    let (ended, far) = (later() - DAY, later() + 400 * DAY);
    let issued = vendors::ending(&machine().ek_spki(), ended, far);
    case.settings.endorsement_keys.require_ca = vec![issued.root_pem()];

    let (denial, findings) = denied_after_start(&case, &issued.certificate, &[]);

    assert_eq!(
        denial,
        TpmDenial::EndorsementCertificateNotValid("expired on 2089-12-01".to_owned())
    );
    assert_eq!(findings.expiring.unwrap().at, ended);
    let condition = &findings.conditions[0];
    assert_eq!(condition.reason, "CertificateExpired");
    let message = &condition.message;
    assert!(
        message.contains(" of CN=an ending root\" (Machine m1) expired on 2089-12-01. "),
        "{message}"
    );
}

#[test]
fn an_expired_certificate_in_a_chain_is_reported_after_a_restart() {
    let maker = EkCa::with_flaw("a maker", 2, 1, Flaw::Expired);
    let certificate = maker.certify(&machine().ek_spki(), &EkContents::good());
    let mut case = Case::valid();
    case.now = later();
    case.settings.endorsement_keys.require_ca = vec![maker.root_pem().to_owned()];

    let (denial, findings) = denied_after_start(&case, &certificate, maker.intermediates());

    assert!(
        matches!(&denial, TpmDenial::EndorsementCertificateIssuerUnfit(why) if why.contains("expired on")),
        "{denial}"
    );
    assert_eq!(
        findings.expiring.unwrap().subject,
        "CN=a maker intermediate 1"
    );
}

#[test]
fn an_expired_certificate_with_another_denial_is_not_reported() {
    let (ended, far) = (later() - DAY, later() + 400 * DAY);
    let key = machine().ek_spki();
    let issued = vendors::ending(&key, ended, far);
    let with_root = |root: String| {
        let mut case = Case::valid();
        case.now = later();
        case.settings.endorsement_keys.require_ca = vec![root];
        case
    };
    let expiring = |case: &Case, certificate: &[u8]| {
        denied_after_start(case, certificate, &[])
            .1
            .expiring
            .is_some()
    };
    let good = with_root(issued.root_pem());
    assert!(expiring(&good, &issued.certificate));

    let another_authority = with_root(vendors::ending(&key, far, far).root_pem());
    assert!(!expiring(&another_authority, &issued.certificate));
    let not_valid_yet = Case {
        now: SystemTime::UNIX_EPOCH + DAY,
        ..good.clone()
    };
    assert!(!expiring(&not_valid_yet, &issued.certificate));
    // Before the certificate check, no source has confirmed that the endorsement key belongs to the machine.
    let mut key_unknown = good;
    key_unknown.settings.endorsement_keys.allow_list.clear();
    assert!(!expiring(&key_unknown, &issued.certificate));
}

#[test]
fn the_verifiers_of_a_cluster_share_observations() {
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
