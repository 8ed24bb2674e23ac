//! Expiries and boots of issued certificates, and when they are written to records.

use super::*;

fn issued(hour: u32) -> LastIssued {
    LastIssued {
        generation: 1,
        serial: "0a".to_owned(),
        not_after: at(hour + 10),
        time: at(hour),
        elapsed: since_epoch(at(hour)),
        boot: None,
    }
}

#[test]
fn a_certificate_expiry_is_recorded_when_the_record_would_mislead() {
    let minutes = Duration::from_mins(1);
    let day = 24;
    for (written, issued_at, now, due) in [
        // Nothing is written: an hour after.
        (None, 0, at(1) - minutes, false),
        (None, 0, at(1), true),
        // The end is written, and is the same, or a little later, or a day later.
        (Some(at(10)), 0, at(5), false),
        (Some(at(10)), 9, at(9), false),
        (Some(at(10)), day - 1, at(9), false),
        (Some(at(10)), day, at(9), true),
        // It is too late, or has passed.
        (Some(at(11)), 0, at(5), true),
        (Some(at(10)), 9, at(10) - minutes, false),
        (Some(at(10)), 9, at(10), true),
        (Some(at(10)), 0, at(12), false),
    ] {
        let issued = issued(issued_at);
        let record = Record {
            renewed_until: written,
            ..World::held(policy()).record("n1")
        };
        assert_eq!(
            is_due(&issued, &record, (now, since_epoch(now))),
            due,
            "{written:?} {issued:?} {now:?}"
        );
    }
}

#[test]
fn the_first_expiry_is_written_after_an_hour_despite_clock_jumps() {
    let year = Duration::from_hours(24 * 365);
    let record = World::held(policy()).record("n1");
    let issued = issued(0);
    for (clock, hours, due) in [
        (at(0) + year, 0, false),
        (at(0) + year, 1, true),
        (at(0) - year, 0, false),
        (at(0) - year, 1, true),
    ] {
        let elapsed = since_epoch(at(hours));
        assert_eq!(is_due(&issued, &record, (clock, elapsed)), due, "{clock:?}");
    }
}

#[test]
fn the_earliest_expiry_includes_unwritten_certificates() {
    let world = World::held(policy());
    let ledger = world.ledger();
    block_on(ledger.records().note(&name("n1"), &issued(0))).unwrap();
    ledger.issued(&name("n1"), issued(5));

    let swept = block_on(ledger.sweep_at(at(6), &BTreeSet::new())).unwrap();

    assert_eq!(world.record("n1").known_end(), at(10));
    assert_eq!(swept.earliest_expiry, Some(at(15)));
}

#[test]
fn an_expiry_from_another_generation_is_ignored() {
    let world = World::held(policy());
    let ledger = world.ledger();
    let of_another = LastIssued {
        generation: 2,
        ..issued(5)
    };
    ledger.issued(&name("n1"), of_another);

    let swept = block_on(ledger.sweep_at(at(6), &BTreeSet::new())).unwrap();

    assert_eq!(swept.earliest_expiry, Some(world.record("n1").known_end()));
}

#[test]
fn a_certificate_expiry_is_written_once() {
    let world = World::held(policy());
    let ledger = world.ledger();
    ledger.issued(&name("n1"), issued(5));

    block_on(ledger.sweep_at(at(5), &BTreeSet::new())).unwrap();
    assert_eq!(world.record("n1").renewed_until, None);
    block_on(ledger.sweep_at(at(6), &BTreeSet::new())).unwrap();
    assert_eq!(world.record("n1").renewed_until, Some(at(15)));
    assert!(!is_due(
        &issued(5),
        &world.record("n1"),
        (at(6), since_epoch(at(6)))
    ));
}

#[test]
fn a_reset_or_restart_of_the_tpm_is_recorded_immediately() {
    let boot = |resets, restarts, clock| TpmBoot {
        resets,
        restarts,
        clock,
    };
    let world = World::held(policy());
    let record = Record {
        renewed_boot: Some(SeenBoot {
            boot: boot(2, 1, 100),
            at: at(0),
        }),
        ..world.record("n1")
    };
    for (seen, due) in [
        (boot(2, 1, 200), false),
        (boot(2, 2, 100), true),
        (boot(3, 0, 100), true),
    ] {
        let issued = LastIssued {
            boot: Some(seen),
            ..issued(0)
        };
        assert_eq!(
            is_due(&issued, &record, (at(0), since_epoch(at(0)))),
            due,
            "{seen:?}"
        );
    }
}
