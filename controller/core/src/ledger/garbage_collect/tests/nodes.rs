//! Tests of Nodes that change, or cannot be read, while a sweep runs.

use futures::future::{FutureExt, pending};

use super::*;
use crate::nodes::{NodeWork, NodeWorkResult, Nodes};
use crate::scope::Enforcement;
use crate::testing::nodes::MemoryNodes;

/// Nodes whose names are claimed while a sweep looks them up.
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

/// Nodes, one of which never responds. The deadline leaves time for two Nodes.
#[derive(Debug)]
struct Slow(Arc<MemoryNodes>);

#[async_trait::async_trait]
impl Nodes for Slow {
    async fn state(&self, node: &NodeName) -> Result<Option<Node>, Unavailable> {
        if *node == name("n1") {
            pending::<()>().await;
        }
        self.0.state(node).await
    }

    async fn work(&self, work: NodeWork<'_>) -> Vec<NodeWorkResult> {
        work.take(2).filter_map(FutureExt::now_or_never).collect()
    }

    async fn delete(&self, node: &NodeName, uid: &str) -> Result<(), Unavailable> {
        self.0.delete(node, uid).await
    }
}

#[test]
fn a_node_whose_calls_hang_does_not_delay_other_nodes_in_each_sweep() {
    let mut world = World::held(policy());
    for (machine, node, key) in [("m2", "n2", 2), ("m3", "n3", 3)] {
        world.claims(&claim(machine, node, key, 0), 0).unwrap();
    }
    for (machine, node) in [("m1", "n1"), ("m2", "n2"), ("m3", "n3")] {
        let longest = policy().longest_lifetime;
        world.edit(node, |record| {
            *record = record.retired(TombstoneReason::MachineGone, longest, at(1));
        });
        world.node_of(node, machine, false, 1);
        world.becomes(machine, None);
    }
    let machines = StaticInventory::new(world.machines.clone()).unwrap();
    let ledger = RecordLedger::new(
        world.records.clone(),
        Arc::new(machines),
        Arc::new(Slow(world.nodes.clone())),
        policy(),
        Enforcement::default(),
    );

    let sweeps = [(); 2].map(|()| block_on(ledger.sweep_at(at(1), &BTreeSet::new())).unwrap());

    let removed = sweeps.each_ref().map(|swept| {
        let done = swept.done.iter();
        done.map(|done| done.node_name.as_str()).collect::<Vec<_>>()
    });
    assert_eq!(removed, [["n2"], ["n3"]]);
    let [first, _] = sweeps;
    let expected = ["n1", "n3"].map(str::to_owned);
    assert_eq!(first.not_removed, BTreeSet::from(expected));
    let failed = first.failed.unwrap();
    assert_eq!((failed.count, failed.node_name), (2, name("n1")));
    assert_eq!(
        failed.error,
        "the time limit passed before the Node was deleted"
    );
}
