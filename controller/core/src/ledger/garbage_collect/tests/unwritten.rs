//! Tests of records that the ledger cannot write.

use super::*;
use crate::testing::faulty_records::Fault;

#[test]
fn a_sweep_reports_the_number_of_records_that_it_could_not_update() {
    let mut world = World::held(policy());
    world.claims(&claim("m2", "n2", 2, 0), 0).unwrap();
    world.becomes("m1", None);
    world.becomes("m2", None);
    let ledger = world.ledger_over(world.faulty(Fault::ReadOnly));
    let swept = |hour| block_on(ledger.sweep_at(at(hour), &BTreeSet::new())).unwrap();
    assert_eq!(swept(1).failed, None);

    let failed = swept(2).failed.unwrap();

    assert_eq!((failed.count, failed.node_name), (2, name("n1")));
    assert!(failed.error.ends_with("away"), "{}", failed.error);
    assert!(world.record("n1").is_live() && world.record("n2").is_live());
}
