use kubelet_attestation::names::ProviderId;
use node_attestation_core::identifiers::RecordUid;
use node_attestation_core::ledger::{Revoked, Tombstone, TombstoneReason};
use node_attestation_core::refusal::{Deferral, Denial, Failure};
use node_attestation_core::testing::records::{
    at, claim, insecure as insecure_claim, name, provider_id,
};
use node_attestation_core::testing::{cluster, decided, insecure, valid};

use super::ConditionStatus::{False, True, Unknown};
use super::*;
use crate::object_key::ObjectKey;
use crate::turns::FairRate;

const TOKEN: &str = "system:bootstrap:abcdef";
const NODE: &str = "system:node:n1";

const GRANTED: Outcome = Outcome::Granted { evidence: true };

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn known(status: ConditionStatus) -> Attested {
    Attested {
        status,
        since: time(100),
        condition_digest: condition_digest("Former", ""),
    }
}

fn refused(user: &str, decision: &Decision) -> Outcome {
    let mut request = CertificateSigningRequest::default();
    request.spec.username = Some(user.to_owned());
    Outcome::of(&request, decision).unwrap()
}

/// The status, the reason and the last transition of the written condition.
type Written = (ConditionStatus, &'static str, SystemTime);

fn written(outcome: &Outcome, known: Option<Attested>) -> Option<Written> {
    let condition = outcome.condition(known, time(200))?;
    Some((condition.status, condition.reason, condition.since))
}

#[test]
fn the_attested_condition_is_written_once() {
    for (evidence, reason) in [(true, "Attested"), (false, "JoinedWithoutEvidence")] {
        let outcome = Outcome::Granted { evidence };
        let condition = outcome.condition(None, time(200)).unwrap();
        let holds = Attested {
            condition_digest: condition_digest(condition.reason, &condition.message),
            ..known(True)
        };
        for (known, expected) in [
            (None, Some((True, reason, time(200)))),
            (Some(known(False)), Some((True, reason, time(200)))),
            (Some(known(Unknown)), Some((True, reason, time(200)))),
            // A different reason, for example the reason of the previous attestor.
            (Some(known(True)), Some((True, reason, time(100)))),
            (Some(holds), None),
        ] {
            assert_eq!(written(&outcome, known), expected, "{known:?}");
        }
    }
}

#[test]
fn only_a_machine_with_evidence_is_reported_as_attested() {
    let of = |request: CertificateSigningRequest| {
        let decision = decided(&request, &cluster());
        Outcome::of(&request, &decision)
    };
    assert_eq!(of(valid()), Some(GRANTED));

    let without = of(insecure());
    let outcome = Outcome::Granted { evidence: false };
    assert_eq!(without, Some(outcome.clone()));
    let condition = outcome.condition(None, time(200)).unwrap();
    assert!(
        !condition.message.contains("proved"),
        "{}",
        condition.message
    );
}

#[test]
fn only_a_denied_renewal_replaces_the_attested_condition() {
    let denial = Decision::Deny(Denial::SignerPurpose);
    let failure = Decision::Fail(Failure::CertificateRejected);
    let deferral = Decision::Retry(Deferral::MachineNotFound);
    for (user, decision, takes) in [
        (TOKEN, &denial, false),
        (TOKEN, &failure, false),
        (TOKEN, &deferral, false),
        (NODE, &denial, true),
        (NODE, &failure, false),
        (NODE, &deferral, false),
    ] {
        let outcome = refused(user, decision);

        assert_eq!(
            written(&outcome, Some(known(True))),
            takes.then_some((False, reason(decision), time(200))),
            "{user} {decision:?}"
        );
    }
}

#[test]
fn only_a_denial_makes_the_attested_condition_false() {
    let denial = Decision::Deny(Denial::SignerPurpose);
    let failure = Decision::Fail(Failure::CertificateRejected);
    let deferral = Decision::Retry(Deferral::MachineNotFound);
    for user in [TOKEN, NODE] {
        for (decision, status, other, takes) in [
            (&denial, False, Unknown, true),
            // A failure does not replace the reason of a denial.
            (&failure, Unknown, False, false),
            (&deferral, Unknown, False, false),
        ] {
            let outcome = refused(user, decision);
            let new = (status, reason(decision), time(200));
            let same = (status, reason(decision), time(100));

            assert_eq!(written(&outcome, None), Some(new), "{user} {decision:?}");
            // For a machine that was refused before: if the status does not change, the time of the last transition
            // does not change.
            let after_other = takes.then_some(new);
            assert_eq!(written(&outcome, Some(known(other))), after_other);
            assert_eq!(written(&outcome, Some(known(status))), Some(same));
        }
    }
}

#[test]
fn revoked_certificates_are_reported_in_the_condition() {
    let expected = Some((False, "CertificatesRevoked", time(200)));
    assert_eq!(written(&Outcome::Revoked, Some(known(True))), expected);
}

#[test]
fn a_long_message_is_truncated_between_characters() {
    assert_eq!(cut("a".repeat(600)).len(), MAX_MESSAGE_LEN);
    assert_eq!(
        cut(format!("a{}", "é".repeat(300))).len(),
        MAX_MESSAGE_LEN - 1
    );
    assert_eq!(cut("short".to_owned()), "short");
}

/// The digest of the condition after this outcome.
fn told_when(outcome: &Outcome) -> u64 {
    let condition = outcome.condition(None, at(1)).unwrap();
    condition_digest(condition.reason, &condition.message)
}

/// The outcome for the record that m1 opened for n1 at hour 2, after `change` has modified the record. The tuple
/// contains the machine's ID, its Node, and its known condition.
fn of_record(
    change: impl FnOnce(&mut Record),
    (id, node, attested): (&ProviderId, Option<&str>, Option<(ConditionStatus, u32)>),
) -> Option<Outcome> {
    let claim = claim("m1", "n1", 1, 2);
    let mut record = Record::first(&claim, RecordUid::new([7; 16]), None, at(2));
    change(&mut record);
    let node = node.map(name);
    let attested = attested.map(|(status, hour)| Attested {
        status,
        since: at(hour),
        condition_digest: told_when(&GRANTED),
    });
    let machine = KnownMachine {
        name: "m1",
        provider_id: id,
        node: node.as_ref(),
        attested,
    };
    Outcome::of_record(&record, machine)
}

#[test]
fn a_record_sets_no_condition_without_the_node_of_its_machine() {
    let (own, other) = (provider_id("m1"), provider_id("m2"));
    let granted = Some(GRANTED);
    for (id, node, attested, expected) in [
        (&own, Some("n1"), None, granted.clone()),
        (&own, Some("n1"), Some((False, 1)), granted.clone()),
        (&own, Some("n1"), Some((Unknown, 1)), granted),
        // After that, the controller refused a renewal.
        (&own, Some("n1"), Some((False, 3)), None),
        (&own, Some("n1"), Some((True, 1)), None),
        (&own, Some("n2"), None, None),
        (&own, None, None, None),
        // A Machine that was recreated under the same name.
        (&other, Some("n1"), None, None),
    ] {
        let state = (id, node, attested);
        assert_eq!(of_record(|_| {}, state), expected, "{state:?}");
    }
}

#[test]
fn a_record_without_evidence_corrects_a_condition_that_claims_some() {
    let own = provider_id("m1");
    let held = (&own, Some("n1"), Some((True, 1)));
    let without = |record: &mut Record| {
        let claim = insecure_claim(claim("m1", "n1", 1, 2));
        *record = Record::first(&claim, RecordUid::new([7; 16]), None, at(2));
    };

    assert_eq!(
        of_record(without, held),
        Some(Outcome::Granted { evidence: false })
    );
    assert_eq!(of_record(|_| {}, held), None);
}

#[test]
fn a_revoked_or_retired_record_does_not_set_the_condition() {
    let own = provider_id("m1");
    let revoked = |record: &mut Record| {
        record.revoked = Some(Revoked {
            generation: 1,
            at: at(3),
        });
    };
    let retired = |record: &mut Record| {
        record.tombstone = Some(Tombstone {
            since: at(3),
            reason: TombstoneReason::MachineGone,
            until: at(4),
        });
    };
    let untold = (&own, Some("n1"), None);
    let held = (&own, Some("n1"), Some((True, 1)));
    let refused = (&own, Some("n1"), Some((False, 1)));

    assert_eq!(of_record(revoked, untold), None);
    assert_eq!(of_record(revoked, refused), None);
    assert_eq!(of_record(revoked, held), Some(Outcome::Revoked));
    assert_eq!(of_record(retired, untold), None);
    assert_eq!(of_record(retired, held), None);
}

fn machine(uid: &str, kind: &str) -> ObjectReference {
    ObjectReference {
        kind: Some(kind.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

#[test]
fn the_last_decision_for_a_machine_overrides_its_record() {
    let outcomes = Outcomes::default();
    let one = machine("1", "Machine");
    let refusal = refused(NODE, &Decision::Deny(Denial::SignerPurpose));
    outcomes.add(&one, GRANTED);
    outcomes.add(&one, refusal.clone());
    outcomes.add_former(&one, GRANTED);
    outcomes.add_former(&machine("2", "Machine"), GRANTED);
    outcomes.add(&machine("3", "MachinePool"), GRANTED);

    let taken = outcomes.take_all().into_iter();
    let taken: Vec<_> = taken
        .map(|(machine, outcome)| (machine.uid.unwrap(), outcome))
        .collect();
    let expected = [("2".to_owned(), GRANTED), ("1".to_owned(), refusal)];
    assert_eq!(taken, expected);
}

#[test]
fn a_refused_token_hides_neither_a_certificate_nor_a_denied_renewal() {
    let outcomes = Outcomes::default();
    let one = machine("1", "Machine");
    let denial = Decision::Deny(Denial::SignerPurpose);
    let waiting = |outcomes: &Outcomes| outcomes.take_all().remove(0).1;

    outcomes.add(&one, GRANTED);
    outcomes.add(&one, refused(TOKEN, &denial));
    assert_eq!(waiting(&outcomes), GRANTED);
    outcomes.add(&one, refused(TOKEN, &denial));
    outcomes.add(&one, GRANTED);
    assert_eq!(waiting(&outcomes), GRANTED);
    outcomes.add(&one, GRANTED);
    outcomes.add(&one, refused(NODE, &denial));
    outcomes.add(&one, refused(TOKEN, &denial));
    assert_eq!(waiting(&outcomes), refused(NODE, &denial));
}

#[test]
fn an_unchanged_refusal_is_not_written_again() {
    let outcome = refused(TOKEN, &Decision::Deny(Denial::SignerPurpose));
    let first = outcome.condition(None, time(200)).unwrap();
    let known = Attested {
        status: False,
        since: time(200),
        condition_digest: condition_digest(first.reason, &first.message),
    };

    assert_eq!(outcome.condition(Some(known), time(300)), None);
    let other = refused(TOKEN, &Decision::Deny(Denial::AttestationUnexpected));
    assert!(other.condition(Some(known), time(300)).is_some());
}

#[test]
fn pending_machine_conditions_are_bounded_and_updated_in_place() {
    let outcomes = Outcomes::default();
    for uid in 0..=MAX_WAITING {
        outcomes.add(&machine(&format!("{uid:05}"), "Machine"), GRANTED);
    }
    outcomes.add(&machine("00000", "Machine"), Outcome::Revoked);

    let taken = outcomes.take_all().into_iter().map(|(_, outcome)| outcome);
    let taken: Vec<_> = taken.collect();
    assert_eq!(taken.len(), MAX_WAITING);
    assert_eq!(taken[..2], [Outcome::Revoked, GRANTED]);
}

#[tokio::test(start_paused = true)]
async fn after_a_burst_forty_machine_conditions_are_written_a_second() {
    let rate = FairRate::new(RATE);
    let cluster = ObjectKey::new("tenant-a", "prod-1");
    let mut written = 0;
    let writing = async {
        loop {
            rate.take(&cluster).await;
            written += 1;
        }
    };

    let seconds = Duration::from_millis(1001);
    assert!(tokio::time::timeout(seconds, writing).await.is_err());

    assert_eq!(written, 200 + 40);
}
