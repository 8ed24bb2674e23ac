use std::collections::BTreeSet;
use std::time::Duration;

use futures::executor::block_on;

use super::NodeOwner;
use crate::inventory::MachineState;
use crate::ledger::{Claim, MISSING_MACHINE_TIMEOUT, Swept, TombstoneReason};
use crate::nodes::{Node, Nodes as _};
use crate::scope::{Enforcement, EnforcementState};
use crate::testing::records::{
    LONGEST, World, at, claim, insecure, machine, name, policy, provider_id,
};

const HOUR: Duration = Duration::from_hours(1);

/// A Node `n1` that was created at the hour `created`, with the provider ID of `machine` if it is set.
fn node_of(machine: Option<&str>, is_up: bool, created: u32) -> Node {
    Node {
        uid: "of-machine".to_owned(),
        ready: is_up,
        lease_renewed: Some(if is_up { at(100) } else { at(created) - HOUR }),
        provider_id: machine.map(|machine| provider_id(machine).to_string()),
        created: Some(at(created)),
    }
}

/// Each state of enforcement, and whether attestation is definitely enforced in this state.
const STATES: [(EnforcementState, bool); 3] = [
    (EnforcementState::Unknown, false),
    (EnforcementState::Off, false),
    (EnforcementState::On, true),
];

/// A world in which `m1` held the name `n1`, and was deleted at hour 2.
fn retired(enforcement: EnforcementState) -> World {
    let mut world = World::held(policy());
    world.enforcement = Enforcement::new(enforcement);
    world.becomes("m1", None);
    for time in [at(2) - MISSING_MACHINE_TIMEOUT, at(2)] {
        block_on(world.ledger().sweep_at(time, &BTreeSet::new())).unwrap();
    }
    assert!(!world.record("n1").is_live());
    world
}

/// Whether a sweep at hour 4 deletes this Node `n1`.
fn is_swept(world: &World, node: Node) -> bool {
    world.nodes.put(name("n1"), node);
    let listed = BTreeSet::from(["n1".to_owned()]);
    let swept = block_on(world.ledger().sweep_at(at(4), &listed)).unwrap();
    let is_gone = there(world).is_none();
    let is_said = swept
        .done
        .iter()
        .any(|done| done.what == Swept::NodeRemoved);
    assert_eq!(is_said, is_gone);
    is_gone
}

fn there(world: &World) -> Option<Node> {
    block_on(world.nodes.state(&name("n1"))).unwrap()
}

#[test]
fn a_sweep_deletes_only_the_node_of_a_retired_machine() {
    for (state, enforcement) in STATES {
        let swept = |node| is_swept(&retired(state), node);
        // The Node is down, and no kubelet can recreate the Node.
        assert!(swept(node_of(Some("m1"), false, 1)));
        assert!(swept(node_of(Some("m1"), false, 3)));
        // The Node is Ready, and was created before the retirement. Its machine was deleted, but its kubelet still
        // runs.
        assert_eq!(swept(node_of(Some("m1"), true, 1)), enforcement);
        // The Node is Ready, and was created after the retirement.
        for created in [2, 3] {
            assert!(!swept(node_of(Some("m1"), true, created)));
        }
        // The Node belongs to a machine without a record.
        for is_up in [true, false] {
            for created in [1, 3] {
                assert!(!swept(node_of(Some("m2"), is_up, created)));
                assert!(!swept(node_of(None, is_up, created)));
                assert!(!swept(node_of(Some("m9"), is_up, created)));
            }
        }
    }
}

#[test]
fn a_sweep_keeps_the_node_of_a_machine_that_returned() {
    let mut world = retired(EnforcementState::On);
    world.becomes("m1", Some(MachineState::Ready));

    assert!(!is_swept(&world, node_of(Some("m1"), false, 1)));
}

#[test]
fn a_sweep_deletes_the_node_of_a_renamed_machine_when_it_is_down() {
    let renamed = || {
        let world = World::held(policy());
        world.claims(&claim("m1", "n2", 1, 1), 1).unwrap();
        assert!(!world.record("n1").is_live());
        world
    };

    assert!(!is_swept(&renamed(), node_of(Some("m1"), true, 0)));
    assert!(is_swept(&renamed(), node_of(Some("m1"), false, 0)));
}

#[test]
fn a_first_claim_replaces_an_unowned_node_that_is_down() {
    for (node, expected) in [
        (node_of(None, false, 0), Ok(true)),
        (node_of(Some("m9"), false, 0), Ok(true)),
        // The machine's own Node.
        (node_of(Some("m1"), false, 0), Ok(false)),
        (node_of(Some("m1"), true, 0), Err("NodeAlive")),
        (node_of(None, true, 0), Err("NodeAlive")),
        (node_of(Some("m9"), true, 0), Err("NodeAlive")),
        (node_of(Some("m2"), true, 0), Err("NodeAlive")),
        (node_of(Some("m2"), false, 0), Err("NodeOfAnotherMachine")),
    ] {
        for claim in [claim("m1", "n1", 1, 1), insecure(claim("m1", "n1", 1, 1))] {
            let world = World::new();
            world.nodes.put(name("n1"), node.clone());
            match expected {
                Ok(is_deleted) => {
                    world.claims(&claim, 1).unwrap();
                    assert_eq!(there(&world).is_none(), is_deleted, "{node:?}");
                }
                Err(reason) => {
                    assert_eq!(world.waits(&claim, 1), reason, "{node:?}");
                    assert_eq!(there(&world), Some(node.clone()));
                }
            }
        }
    }
}

#[test]
fn a_node_whose_machine_holds_another_name_is_not_replaced() {
    let mut world = World::new();
    // The Machine is temporarily missing from the inventory.
    world.machines.push(machine("m4", MachineState::Ready));
    world.claims(&claim("m4", "n4", 4, 0), 0).unwrap();
    world.becomes("m4", None);
    world.nodes.put(name("n1"), node_of(Some("m4"), false, 0));

    assert_eq!(
        world.waits(&claim("m1", "n1", 1, 1), 1),
        "NodeOfAnotherMachine"
    );
}

#[test]
fn a_name_gets_a_new_holder_only_if_the_node_can_be_removed() {
    let change = |enforcement, node: Node| {
        let world = retired(enforcement);
        world.nodes.put(name("n1"), node);
        let claim = claim("m2", "n1", 2, 3);
        match world.claims(&claim, 3) {
            Ok(grant) => {
                assert_eq!(world.record("n1").holder.provider_id, provider_id("m2"));
                assert_eq!(grant.uid.generation, world.record("n1").generation);
                Ok(there(&world).is_none())
            }
            Err(_) => Err(world.waits(&claim, 3)),
        }
    };
    for (state, enforcement) in STATES {
        let change = |node| change(state, node);
        assert_eq!(change(node_of(Some("m1"), false, 1)), Ok(true));
        assert_eq!(change(node_of(Some("m9"), false, 1)), Ok(true));
        assert_eq!(change(node_of(None, false, 1)), Ok(true));
        assert_eq!(change(node_of(Some("m2"), false, 1)), Ok(false));
        assert_eq!(
            change(node_of(Some("m3"), false, 1)),
            Err("NodeOfAnotherMachine")
        );
        assert_eq!(change(node_of(Some("m3"), true, 1)), Err("NodeAlive"));
        assert_eq!(change(node_of(Some("m1"), true, 3)), Err("NodeAlive"));
        assert_eq!(change(node_of(None, true, 1)), Err("NodeAlive"));
        let claimed = change(node_of(Some("m1"), true, 1));
        let expected = if enforcement {
            Ok(true)
        } else {
            Err("NodeAlive")
        };
        assert_eq!(claimed, expected);
    }
}

#[test]
fn a_returning_machine_keeps_its_own_node_and_replaces_a_stale_one() {
    let back = |node: Node, claim: Claim| {
        let mut world = retired(EnforcementState::On);
        world.becomes("m1", Some(MachineState::Ready));
        world.nodes.put(name("n1"), node);
        match world.claims(&claim, 3) {
            Ok(_) => Ok(there(&world).is_none()),
            Err(_) => Err(world.waits(&claim, 3)),
        }
    };
    for claim in [claim("m1", "n1", 2, 3), insecure(claim("m1", "n1", 2, 3))] {
        let back = |node| back(node, claim.clone());
        // The Node belongs to the machine itself, and its kubelet continues to use it.
        assert_eq!(back(node_of(Some("m1"), true, 1)), Ok(false));
        assert_eq!(back(node_of(Some("m1"), false, 1)), Ok(false));
        // A holder of the previous certificate can create a Node after Cluster API has deleted the machine's own Node.
        assert_eq!(back(node_of(None, false, 1)), Ok(true));
        assert_eq!(back(node_of(None, true, 1)), Err("NodeAlive"));
        assert_eq!(back(node_of(Some("m9"), false, 1)), Ok(true));
        assert_eq!(
            back(node_of(Some("m2"), false, 1)),
            Err("NodeOfAnotherMachine")
        );
    }
}

#[test]
fn a_node_that_the_new_kubelet_adopted_is_not_deleted() {
    let world = retired(EnforcementState::On);
    world.nodes.put(name("n1"), node_of(Some("m1"), false, 1));
    world.claims(&claim("m2", "n1", 2, 3), 3).unwrap();
    assert_eq!(there(&world), None);
    // The deletion of the Node failed, and the new kubelet adopted the Node.
    let adopted = Node {
        ready: true,
        lease_renewed: Some(at(3)),
        ..node_of(Some("m1"), false, 1)
    };
    world.nodes.put(name("n1"), adopted.clone());

    block_on(world.ledger().sweep_at(at(3), &BTreeSet::new())).unwrap();
    assert_eq!(there(&world), Some(adopted));

    world.nodes.put(name("n1"), node_of(Some("m1"), false, 1));
    block_on(world.ledger().sweep_at(at(3), &BTreeSet::new())).unwrap();
    assert_eq!(there(&world), None);
}

#[test]
fn a_node_of_a_retired_machine_has_no_holder() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    let owner = |world: &World| {
        world.nodes.put(name("n2"), node_of(Some("m1"), false, 1));
        let node = block_on(world.ledger().node(&name("n2"), at(2))).unwrap();
        node.unwrap().owner
    };
    assert_eq!(owner(&world), NodeOwner::Present(provider_id("m1")));

    world.edit("n1", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });
    assert_eq!(
        owner(&world),
        NodeOwner::Gone(provider_id("m1").to_string())
    );
}
