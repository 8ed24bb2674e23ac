//! Tests of predictions for machines that have not sent evidence yet.

use node_attestation_core::testing::pauses;

use super::*;
use crate::fixture::FakePlatform;

fn key(digit: &str) -> KeyDigest {
    KeyDigest::parse(&digit.repeat(64)).unwrap()
}

fn foreseen(case: &Case) -> Result<Foresight, Refusal> {
    let id = ProviderId::parse(case.provider_id).unwrap();
    let verifier = case.verifier();
    pauses(verifier.foresee(&case.machine, &id, noon())).0
}

#[track_caller]
fn reason(foreseen: Result<Foresight, Refusal>) -> &'static str {
    match foreseen {
        Err(Refusal::Deny(denial)) => denial.reason(),
        other => panic!("not denied: {other:?}"),
    }
}

#[test]
fn a_prediction_contains_the_listed_key_of_the_machine() {
    let mut case = Case::of_nobody();
    case.allow("m1", key("1"));

    let foresight = foreseen(&case).unwrap();

    assert_eq!(foresight.identity.endorsement_key, Some(key("1")));
    assert!(foresight.unknown.is_none(), "{foresight:?}");
    case.allow("m1", key("2"));
    assert_eq!(reason(foreseen(&case)), "EndorsementKeyOfAnotherMachine");
    let unlisted = foreseen(&Case::of_nobody());
    assert_eq!(reason(unlisted), "EndorsementKeyUnknown");
}

#[test]
fn a_prediction_contains_the_key_and_the_name_that_the_platform_reports() {
    let mut case = Case::of_nobody();
    case.platform = Arc::new(FakePlatform::Names(key("1"), "n7"));

    let foresight = foreseen(&case).unwrap();

    assert_eq!(foresight.identity.endorsement_key, Some(key("1")));
    let name = foresight.identity.node_name.unwrap();
    assert_eq!(name.as_str(), "n7");
    case.platform = Arc::new(FakePlatform::Denies(key("1")));
    assert_eq!(reason(foreseen(&case)), "EvidenceMissing");
}

#[test]
fn an_unavailable_platform_leaves_a_prediction_without_a_key() {
    let mut case = Case::of_nobody();
    case.platform = Arc::new(FakePlatform::OutOfOrder);

    let foresight = foreseen(&case).unwrap();

    assert_eq!(foresight.identity.endorsement_key, None);
    assert!(foresight.unknown.is_some(), "{foresight:?}");
}
