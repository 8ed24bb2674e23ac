//! Nodes that change, or cannot be read, while a sweep runs.

use futures::future::FutureExt as _;

use super::*;
use crate::nodes::Nodes;
use crate::scope::Enforcement;

/// Nodes whose name is claimed during the lookup.
#[derive(Debug)]
struct Rejoined(World);

#[async_trait::async_trait]
impl Nodes for Rejoined {
    async fn state(&self, node: &NodeName) -> Result<Option<Node>, Unavailable> {
        let Self(world) = self;
        let stored = world.records.read(node).now_or_never();
        let Stored { record, version } = stored.unwrap().unwrap().unwrap();
        let reopened = Record {
            generation: record.generation + 1,
            tombstone: None,
            ..record
        };
        let written = world.records.replace(&reopened, &version).now_or_never();
        written.unwrap().unwrap();
        world.nodes.state(node).await
    }

    async fn delete(&self, node: &NodeName, uid: &str) -> Result<(), Unavailable> {
        self.0.nodes.delete(node, uid).await
    }
}

#[test]
fn a_node_whose_name_is_claimed_during_a_sweep_is_kept() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    swept_again(&world, 2);
    world.node("n1", true, 3);
    let (records, nodes) = (world.records.clone(), world.nodes.clone());
    let machines = StaticInventory::new(world.machines.clone()).unwrap();
    let rejoined = Arc::new(Rejoined(world));
    let ledger = RecordLedger::new(
        records,
        Arc::new(machines),
        rejoined,
        policy(),
        Enforcement::default(),
    );

    block_on(ledger.sweep_at(at(3), &BTreeSet::new())).unwrap();

    let node = block_on(nodes.state(&name("n1"))).unwrap();
    assert!(node.is_some());
}

/// The Nodes in an API server that does not respond.
#[derive(Debug)]
struct Away;

#[async_trait::async_trait]
impl Nodes for Away {
    async fn state(&self, _: &NodeName) -> Result<Option<Node>, Unavailable> {
        Err(Unavailable::new("away"))
    }

    async fn delete(&self, _: &NodeName, _: &str) -> Result<(), Unavailable> {
        Err(Unavailable::new("away"))
    }
}

#[test]
fn a_node_that_was_not_deleted_is_listed_for_the_next_sweep() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    swept_again(&world, 2);
    let machines = StaticInventory::new(world.machines.clone()).unwrap();
    let ledger = RecordLedger::new(
        world.records.clone(),
        Arc::new(machines),
        Arc::new(Away),
        policy(),
        Enforcement::default(),
    );
    let listed = BTreeSet::from(["n1".to_owned()]);

    let swept = block_on(ledger.sweep_at(at(5), &listed)).unwrap();

    assert_eq!(swept.not_removed, listed);
}
