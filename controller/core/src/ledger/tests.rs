use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use futures::executor::block_on;
use kubelet_attestation::names::ProviderId;

use super::*;
use crate::refusal::{Deferral, Denial};
use crate::verifier::Identity;

const HOUR: Duration = Duration::from_hours(1);

/// Record UIDs are all zeros, then all ones, and so on.
fn ledger() -> MemoryLedger {
    let made = AtomicU8::new(0);
    MemoryLedger::with_entropy(move || Some([made.fetch_add(1, Ordering::Relaxed); 16]))
}

fn at(hours: u32) -> SystemTime {
    UNIX_EPOCH + 500_000 * HOUR + hours * HOUR
}

fn identity(machine: &str) -> Identity {
    Identity {
        provider_id: ProviderId::parse(&format!("metal:///{machine}")).unwrap(),
    }
}

fn name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

/// Claims `node` for `machine` with `key`, for a certificate of ten hours.
fn claim(ledger: &MemoryLedger, machine: &str, node: &str, key: u8, hour: u32) -> Claimed {
    let identity = AttestedIdentity::vouched(identity(machine));
    let claim = Claim {
        node_name: name(node),
        assurance: Assurance::Attested(identity),
        key: KeyDigest::of(&[key]),
        not_after: at(hour + 10),
    };
    block_on(ledger.claim(&claim, at(hour))).map(|grant| grant.uid)
}

/// The same for a machine that proved nothing; gives the end of what is granted.
fn claim_unattested(ledger: &MemoryLedger, key: u8, hour: u32) -> SystemTime {
    let claim = Claim {
        node_name: name("n1"),
        assurance: Assurance::None(identity("m1")),
        key: KeyDigest::of(&[key]),
        not_after: at(hour + 10),
    };
    block_on(ledger.claim(&claim, at(hour))).unwrap().not_after
}

type Claimed = Result<CertificateUid, Refusal>;

fn renew(ledger: &MemoryLedger, machine: &str, uid: CertificateUid, hour: u32) -> Claimed {
    let renewal = Renewal {
        node_name: name("n1"),
        identity: AttestedIdentity::vouched(identity(machine)),
        uid,
        not_after: at(hour + 10),
    };
    block_on(ledger.renew(&renewal, at(hour))).map(|grant| grant.uid)
}

fn uid(record: u8, generation: u64) -> CertificateUid {
    CertificateUid {
        record: RecordUid::new([record; 16]),
        generation,
    }
}

#[track_caller]
fn live(claimed: &Claimed) {
    assert!(
        matches!(claimed, Err(Refusal::Retry(Deferral::IdentityLive { .. }))),
        "{claimed:?}"
    );
}

#[track_caller]
fn denied(claimed: Claimed) -> Denial {
    let decision = claimed;
    let Err(Refusal::Deny(denial)) = decision else {
        panic!("not denied: {decision:?}")
    };
    denial
}

#[test]
fn the_first_claim_makes_a_record() {
    assert_eq!(claim(&ledger(), "m1", "n1", 1, 0).unwrap(), uid(0, 1));
}

#[test]
fn the_same_machine_with_the_same_key_finds_its_claim() {
    let ledger = ledger();
    let first = claim(&ledger, "m1", "n1", 1, 0).unwrap();

    assert_eq!(claim(&ledger, "m1", "n1", 1, 0).unwrap(), first);
    assert_eq!(claim(&ledger, "m1", "n1", 1, 10).unwrap(), first);
}

#[test]
fn the_same_key_opens_another_generation_once_no_certificate_is_valid() {
    let ledger = ledger();
    claim(&ledger, "m1", "n1", 1, 0).unwrap();

    assert_eq!(claim(&ledger, "m1", "n1", 1, 11).unwrap(), uid(0, 2));
}

#[test]
fn the_same_key_is_no_renewal_for_a_machine_that_proved_nothing() {
    let ledger = ledger();

    assert_eq!(claim_unattested(&ledger, 1, 0), at(10));
    assert_eq!(claim_unattested(&ledger, 1, 5), at(10));
    assert_eq!(claim_unattested(&ledger, 1, 10), at(10));
    assert_eq!(claim_unattested(&ledger, 1, 11), at(21));
}

#[test]
fn another_key_waits_until_no_certificate_is_valid() {
    let ledger = ledger();
    claim(&ledger, "m1", "n1", 1, 0).unwrap();

    live(&claim(&ledger, "m1", "n1", 2, 1));
    live(&claim(&ledger, "m1", "n1", 2, 10));
    assert_eq!(claim(&ledger, "m1", "n1", 2, 11).unwrap(), uid(0, 2));
}

#[test]
fn a_repeated_claim_keeps_the_record_alive_for_its_certificate() {
    let ledger = ledger();
    claim(&ledger, "m1", "n1", 1, 0).unwrap();
    claim(&ledger, "m1", "n1", 1, 5).unwrap();

    live(&claim(&ledger, "m1", "n1", 2, 11));
}

#[test]
fn another_machine_is_denied_a_name_that_is_held() {
    let ledger = ledger();
    claim(&ledger, "m1", "n1", 1, 0).unwrap();

    for key in [1, 2] {
        assert_eq!(
            denied(claim(&ledger, "m2", "n1", key, 1)),
            Denial::NameTaken {
                node_name: name("n1"),
                holder: identity("m1").provider_id,
            }
        );
    }
}

#[test]
fn a_name_changes_hands_when_no_certificate_of_its_holder_is_valid() {
    let ledger = ledger();
    claim(&ledger, "m1", "n1", 1, 0).unwrap();

    assert_eq!(claim(&ledger, "m2", "n1", 2, 11).unwrap(), uid(0, 2));
    assert!(matches!(
        denied(renew(&ledger, "m1", uid(0, 1), 12)),
        Denial::FormerCertificate { .. }
    ));
}

#[test]
fn a_machine_cannot_take_a_second_name_while_it_holds_one() {
    let ledger = ledger();
    claim(&ledger, "m1", "n1", 1, 0).unwrap();

    live(&claim(&ledger, "m1", "n2", 1, 1));
    assert_eq!(claim(&ledger, "m1", "n2", 1, 11).unwrap(), uid(1, 1));
    assert!(matches!(
        denied(renew(&ledger, "m1", uid(0, 1), 12)),
        Denial::RecordMissing { .. }
    ));
}

#[test]
fn a_renewal_finds_the_record_of_its_certificate() {
    let ledger = ledger();
    let first = claim(&ledger, "m1", "n1", 1, 0).unwrap();

    assert_eq!(renew(&ledger, "m1", first, 9).unwrap(), first);
    live(&claim(&ledger, "m1", "n1", 2, 19));
    assert_eq!(claim(&ledger, "m1", "n1", 2, 20).unwrap(), uid(0, 2));
}

#[test]
fn a_renewal_of_another_record_generation_or_machine_is_denied() {
    let ledger = ledger();
    assert_eq!(
        denied(renew(&ledger, "m1", uid(0, 1), 1)),
        Denial::RecordMissing {
            node_name: name("n1")
        }
    );
    claim(&ledger, "m1", "n1", 1, 0).unwrap();

    for presented in [uid(0, 2), uid(1, 1)] {
        let node_name = name("n1");
        assert_eq!(
            denied(renew(&ledger, "m1", presented, 1)),
            Denial::FormerCertificate {
                node_name,
                presented
            }
        );
    }
    assert_eq!(
        denied(renew(&ledger, "m2", uid(0, 1), 1)),
        Denial::NameTaken {
            node_name: name("n1"),
            holder: identity("m1").provider_id,
        }
    );
}

#[test]
fn without_random_bytes_nothing_is_claimed() {
    let ledger = MemoryLedger::with_entropy(|| None);

    assert!(matches!(
        claim(&ledger, "m1", "n1", 1, 0),
        Err(Refusal::Retry(Deferral::LedgerUnavailable { .. }))
    ));
}

#[test]
fn records_of_a_real_ledger_differ() {
    let ledger = MemoryLedger::default();
    let first = claim(&ledger, "m1", "n1", 1, 0).unwrap();
    let second = claim(&ledger, "m2", "n2", 2, 0).unwrap();

    assert_ne!(first.record, second.record);
}

#[test]
fn a_certificates_uid_reads_back() {
    let text = "000102030405060708090a0b0c0d0e0f.18446744073709551615";

    assert_eq!(CertificateUid::parse(text).unwrap().to_string(), text);
}

#[test]
fn a_certificates_uid_has_one_form() {
    let record = "000102030405060708090a0b0c0d0e0f";
    for text in [
        String::new(),
        record.to_owned(),
        format!("{record}."),
        format!("{record}.0"),
        format!("{record}.01"),
        format!("{record}.+1"),
        format!("{record}.1.1"),
        format!("{record}.1 "),
        format!("{record}.18446744073709551616"),
        format!("{}.1", record.to_ascii_uppercase()),
        format!("{}.1", record.split_at(2).1),
        format!("{record}00.1"),
    ] {
        assert_eq!(
            CertificateUid::parse(&text),
            Err(InvalidCertificateUid),
            "{text:?}"
        );
    }
}

#[test]
fn the_holder_is_read_by_the_present_generation_or_by_the_name_alone() {
    let ledger = ledger();
    claim(&ledger, "m1", "n1", 1, 0).unwrap();
    let holder = |node: &str, uid| block_on(ledger.holder(&name(node), uid, at(0)));

    for uid in [Some(uid(0, 1)), None] {
        let holder = holder("n1", uid).unwrap();
        assert_eq!(holder.uid, self::uid(0, 1));
        assert_eq!(holder.assurance.identity(), &identity("m1"));
        assert!(matches!(holder.assurance, Assurance::Attested(_)));
    }
    let former = holder("n1", Some(uid(0, 2)));
    assert!(matches!(
        former,
        Err(Refusal::Deny(Denial::FormerCertificate { .. }))
    ));
    let missing = holder("n2", None);
    assert!(matches!(
        missing,
        Err(Refusal::Deny(Denial::RecordMissing { .. }))
    ));
}
