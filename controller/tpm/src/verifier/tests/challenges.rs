//! Tests of challenges, and of the values that they cover.

use std::time::Duration;

use kubelet_attestation::evidence::tpm::Expiry;

use super::*;
use crate::challenge::{ChallengeKeys, LIFETIME};
use crate::fixture::{REGISTERS, answer, key, respond};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_quote_with_a_different_challenge_secret_is_denied() {
    let case = Case::valid();
    for secret in [&[0; 32][..], &[], &[7; 32]] {
        let qualifying = case.qualifying(&GOOD.challenge, secret);
        let quote = machine().quote(&qualifying, &REGISTERS);

        let response = answer(&GOOD.enrolment, &GOOD.challenge, quote);
        assert_eq!(
            denied(case.respond(&response)),
            TpmDenial::QuoteOfAnotherRequest
        );
    }
}

#[test]
fn evidence_for_another_key_is_denied() {
    let mut case = Case::valid();
    case.spki = b"the key of whoever read the request";

    assert_eq!(
        denied(case.respond(&GOOD.response)),
        TpmDenial::QuoteOfAnotherRequest
    );
}

/// Changes to the values that a challenge covers, one value at a time.
fn others() -> Vec<(&'static str, Case)> {
    let changed = |what, change: &dyn Fn(&mut Case)| {
        let mut case = Case::valid();
        change(&mut case);
        (what, case)
    };
    vec![
        changed("key", &|case| case.spki = b"another key"),
        changed("name", &|case| case.node_name = "n2"),
        changed("machine", &|case| {
            *case = case.clone().called("metal:///rack-1/8");
        }),
    ]
}

#[test]
fn a_challenge_is_not_accepted_for_another_request() {
    for (what, other) in others() {
        assert_eq!(
            denied(other.respond(&GOOD.response)),
            TpmDenial::QuoteOfAnotherRequest,
            "another {what}"
        );
    }
}

#[test]
fn an_opened_secret_is_not_accepted_for_another_request() {
    // The machine requests a challenge from another cluster, opens it, and presents the response to this cluster.
    let here = Case::valid();
    for (what, elsewhere) in others() {
        let challenge = elsewhere.challenge(&GOOD.enrolment);
        let response = respond(&machine(), &here, &GOOD.enrolment, &challenge);

        assert_eq!(
            denied(here.respond(&response)),
            TpmDenial::QuoteOfAnotherRequest,
            "another {what}"
        );
    }
}

#[test]
fn a_challenge_from_another_controller_fails_as_expired() {
    let mut elsewhere = Case::valid();
    elsewhere.keys.current = key(2);
    let here = Case::valid();
    let challenge = elsewhere.challenge(&GOOD.enrolment);
    let response = respond(&machine(), &here, &GOOD.enrolment, &challenge);

    for decided in [here.respond(&response), elsewhere.respond(&GOOD.response)] {
        assert!(
            matches!(decided, Err(Refusal::Fail(Failure::EvidenceExpired))),
            "{decided:?}"
        );
    }
}

#[test]
fn a_challenge_from_another_cluster_uid_fails_as_expired() {
    // After `clusterctl move`, the Cluster has a different UID. Another Cluster also has a different UID.
    let here = Case::valid();
    let mut elsewhere = here.clone();
    elsewhere.cluster_uid = "another";
    let challenge = elsewhere.challenge(&GOOD.enrolment);
    let response = respond(&machine(), &here, &GOOD.enrolment, &challenge);

    for decided in [here.respond(&response), elsewhere.respond(&GOOD.response)] {
        assert!(
            matches!(decided, Err(Refusal::Fail(Failure::EvidenceExpired))),
            "{decided:?}"
        );
    }
    assert!(here.respond(&GOOD.response).is_ok());
}

#[test]
fn each_audience_of_a_cluster_has_different_challenge_secrets() {
    let mut case = Case::valid();
    let former = Audience::parse("former").unwrap();
    case.audiences.push(former.clone());
    let mut response = GOOD.response.clone();
    response.header.audience = former;

    assert_eq!(
        denied(case.respond(&response)),
        TpmDenial::QuoteOfAnotherRequest
    );
}

#[test]
fn a_response_with_another_id_or_expiry_is_denied() {
    let case = Case::valid();
    let mut other_id = GOOD.response.clone();
    other_id.id = case.challenge(&GOOD.enrolment).id;
    let mut later = GOOD.response.clone();
    later.expiry = Expiry::parse("2026-01-01T12:05:01Z").unwrap();
    assert_ne!(later.expiry, GOOD.response.expiry);

    for response in [other_id, later] {
        assert_eq!(
            denied(case.respond(&response)),
            TpmDenial::QuoteOfAnotherRequest
        );
    }
}

#[test]
fn a_response_is_sent_within_5_and_verified_within_14_minutes() {
    assert_eq!(GOOD.challenge.expiry.as_str(), "2026-01-01T12:05:00Z");
    let end = noon() + LIFETIME;
    let hour = Duration::from_hours(1);
    let late = 9 * 60 * SECOND;
    for (what, asked, now, in_time) in [
        ("at the last moment", end, end, true),
        ("too late", end + SECOND, end + SECOND, false),
        ("waited", end, end + late, true),
        ("waited too long", end, end + late + SECOND, false),
        (
            "asked late, by the API server's clock",
            end + hour,
            end,
            true,
        ),
        (
            "asked early, by the API server's clock",
            end - hour,
            end + SECOND,
            true,
        ),
        ("asked early, and long ago", end - hour, end + hour, false),
    ] {
        let mut case = Case::valid();
        (case.asked, case.now) = (asked, now);

        let decided = case.respond(&GOOD.response);
        match decided {
            Ok(Assurance::Attested(_)) => assert!(in_time, "{what}"),
            Err(Refusal::Fail(Failure::EvidenceExpired)) => assert!(!in_time, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn an_invalid_expiry_is_malformed() {
    for expiry in [
        "2026-02-30T12:05:00Z",
        "2026-13-01T12:05:00Z",
        "2026-01-01T25:05:00Z",
    ] {
        let mut response = GOOD.response.clone();
        response.expiry = Expiry::parse(expiry).unwrap();

        let decided = Case::valid().respond(&response);
        assert!(
            matches!(
                decided,
                Err(Refusal::Deny(Denial::EvidenceMalformed { .. }))
            ),
            "{expiry}: {decided:?}"
        );
    }
}

#[test]
fn a_key_replacement_does_not_break_open_challenges() {
    let mut case = Case::valid();
    case.keys = ChallengeKeys {
        current: key(2),
        former: Some(case.keys.current),
    };
    case.proves(&GOOD.response);
    // New challenges use the new key.
    let new = Good::of(&machine(), &case);
    case.keys.former = None;
    case.proves(&new.response);

    let dropped = case.respond(&GOOD.response);
    assert!(
        matches!(dropped, Err(Refusal::Fail(Failure::EvidenceExpired))),
        "{dropped:?}"
    );
}

#[test]
fn challenges_are_unique() {
    let case = Case::valid();
    let (one, other) = (
        case.challenge(&GOOD.enrolment),
        case.challenge(&GOOD.enrolment),
    );

    assert_ne!(one.id, other.id);
    assert_ne!(one.credential_blob, other.credential_blob);
    assert_ne!(one.encrypted_secret, other.encrypted_secret);
}

#[test]
fn a_challenge_contains_the_digest_of_its_endorsement_key() {
    let Err(Refusal::Fail(failure)) = Case::valid().enrol(&GOOD.enrolment) else {
        panic!("no challenge");
    };

    let Failure::ChallengeIssued {
        endorsement_key, ..
    } = failure
    else {
        panic!("{failure:?}");
    };
    assert_eq!(endorsement_key, digest(&machine()));
}

#[test]
fn other_tasks_run_before_each_check_of_a_quote() {
    let case = Case::valid();
    let response = TpmEvidence::Respond(GOOD.response.clone()).to_json();

    let (decided, pauses) = case.counted_by(&case.verifier(), Some(&response));

    assert!(decided.is_ok(), "{decided:?}");
    // The signature check and the check of the PCR values also wait for the checks in other tests.
    assert!(pauses >= 2, "{pauses}");
}
