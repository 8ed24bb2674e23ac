//! Tests of the expiry times and boot counters in issued certificates, and of the times at which the ledger writes them
//! to records.

use super::*;
use crate::nodes::Nodes;
use crate::testing::nodes::MemoryNodes;

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
        // The record has no expiry yet, so the write is due after one hour.
        (None, 0, at(1) - minutes, false),
        (None, 0, at(1), true),
        // The stored expiry time equals the real expiry time, or is a little earlier, or is one day earlier.
        (Some(at(10)), 0, at(5), false),
        (Some(at(10)), 9, at(9), false),
        (Some(at(10)), day - 1, at(9), false),
        (Some(at(10)), day, at(9), true),
        // The stored expiry time is later than the real one, or has passed.
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
fn the_earliest_expiry_ignores_expired_certificates() {
    let world = World::held(policy());
    world.claims(&insecure(claim("m2", "n2", 2, 3)), 3).unwrap();

    for (hour, earliest) in [(4, Some(at(10))), (10, Some(at(13))), (13, None)] {
        let swept = block_on(world.ledger().sweep_at(at(hour), &BTreeSet::new()));
        assert_eq!(swept.unwrap().earliest_expiry, earliest, "hour {hour}");
    }
}

#[test]
fn a_certificate_is_overdue_with_less_than_a_day_and_a_quarter_left() {
    let short = World::held(policy()).record("n1");
    let long = Record {
        not_after: at(7 * 24),
        ..short.clone()
    };
    let of_a_week = LastIssued {
        not_after: at(7 * 24),
        ..issued(0)
    };
    for (issued, record, hour, overdue) in [
        // A quarter of ten hours is two and a half hours.
        (Some(issued(0)), &short, 7, false),
        (Some(issued(0)), &short, 8, true),
        // The certificate has expired, so its Node cannot remain Ready for long.
        (Some(issued(0)), &short, 10, false),
        (Some(of_a_week.clone()), &long, 6 * 24, false),
        (Some(of_a_week), &long, 6 * 24 + 1, true),
        // Another process issued the certificate.
        (None, &long, 6 * 24, false),
        (None, &long, 6 * 24 + 1, true),
        (None, &short, 8, false),
    ] {
        let found = is_overdue(issued.as_ref(), record, at(hour));
        assert_eq!(found, overdue, "{issued:?} at hour {hour}");
    }
}

#[test]
fn a_revoked_or_retired_record_is_not_overdue() {
    let world = World::held(policy());
    let (record, issued) = (world.record("n1"), issued(0));
    assert!(is_overdue(Some(&issued), &record, at(8)));

    let retired = record.retired(TombstoneReason::MachineGone, LONGEST, at(8));
    assert!(!is_overdue(Some(&issued), &retired, at(8)));
    world.revoke("n1", 8);
    let revoked = world.record("n1");
    assert!(!is_overdue(Some(&issued), &revoked, at(8)));
}

#[test]
fn only_ready_nodes_count_as_overdue() {
    let world = World::held(policy());
    let ledger = world.ledger();
    ledger.issued(&name("n1"), issued(0));
    let overdue = || {
        let swept = block_on(ledger.sweep_at(at(8), &BTreeSet::new()));
        swept.unwrap().overdue
    };
    assert_eq!(overdue(), Some(0), "without a Node");
    world.node("n1", false, 8);
    assert_eq!(overdue(), Some(0), "powered off");

    world.node("n1", true, 8);
    assert_eq!(overdue(), Some(1));

    ledger.issued(&name("n1"), issued(8));
    assert_eq!(overdue(), Some(0), "renewed");
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

/// Nodes, some of which cannot be read.
#[derive(Debug)]
struct Partial {
    nodes: Arc<MemoryNodes>,
    unreadable: Vec<NodeName>,
}

#[async_trait::async_trait]
impl Nodes for Partial {
    async fn state(&self, node: &NodeName) -> Result<Option<Node>, Unavailable> {
        if self.unreadable.contains(node) {
            return Err(Unavailable::new("invalid"));
        }
        self.nodes.state(node).await
    }

    async fn delete(&self, node: &NodeName, uid: &str) -> Result<(), Unavailable> {
        self.nodes.delete(node, uid).await
    }
}

#[test]
fn an_unreadable_node_does_not_hide_other_overdue_nodes() {
    for (unreadable, count) in [
        (Vec::new(), Some(2)),
        (vec![name("n1")], Some(1)),
        (vec![name("n1"), name("n2")], None),
    ] {
        let world = World::held(policy());
        world.claims(&claim("m2", "n2", 2, 0), 0).unwrap();
        for node in ["n1", "n2"] {
            world.node(node, true, 8);
        }
        let machines = StaticInventory::new(world.machines.clone()).unwrap();
        let nodes = Partial {
            nodes: world.nodes.clone(),
            unreadable,
        };
        let ledger = RecordLedger::new(
            world.records.clone(),
            Arc::new(machines),
            Arc::new(nodes),
            policy(),
            Enforcement::default(),
        );
        for node in ["n1", "n2"] {
            ledger.issued(&name(node), issued(0));
        }

        let swept = block_on(ledger.sweep_at(at(8), &BTreeSet::new())).unwrap();

        assert_eq!(swept.overdue, count);
    }
}
