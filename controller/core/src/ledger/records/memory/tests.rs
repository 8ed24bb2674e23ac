use futures::executor::block_on;

use super::*;
use crate::testing::records::{World, policy};

#[test]
fn a_record_is_replaced_and_deleted_only_in_the_version_read() {
    let world = World::held(policy());
    let records = &world.records;
    let record = world.record("n1");
    let name = &record.node_name;
    let before = block_on(records.read(name)).unwrap().unwrap();
    let after = block_on(records.replace(&record, &before.version)).unwrap();
    assert_ne!(after.version, before.version);

    let replaced = block_on(records.replace(&record, &before.version));
    assert!(
        matches!(replaced, Err(WriteError::Conflict)),
        "{replaced:?}"
    );
    let deleted = block_on(records.delete(name, &before.version));
    assert!(matches!(deleted, Err(WriteError::Conflict)), "{deleted:?}");
    assert_eq!(block_on(records.read(name)).unwrap().as_ref(), Some(&after));
    block_on(records.delete(name, &after.version)).unwrap();
    assert_eq!(block_on(records.read(name)).unwrap(), None);
}
