//! Tests of claims to a name whose record was reset.

use crate::refusal::Denial;
use crate::testing::records::*;

#[test]
fn a_reset_name_can_be_claimed_while_the_holders_machine_exists() {
    let reset = || {
        let world = World::held(policy());
        world.reset("n1");
        world
    };
    let claim = claim("m2", "n1", 2, 1);
    let world = reset();
    assert_eq!(world.granted(&claim, 1), opened_at(1));
    assert_eq!(world.record("n1").holder.provider_id, provider_id("m2"));

    let world = reset();
    world.node_of("n1", "m1", false, 0);
    assert_eq!(world.granted(&claim, 1), opened_at(1));
    let name = name("n1");
    let node = crate::nodes::Nodes::state(&*world.nodes, &name);
    assert_eq!(futures::executor::block_on(node).unwrap(), None);

    // The kubelet of the node is running.
    let world = reset();
    world.node_of("n1", "m1", true, 1);
    assert_eq!(world.waits(&claim, 1), "NodeAlive");
}

#[test]
fn a_renewal_clears_the_reset_of_its_record() {
    let world = World::held(policy());
    world.reset("n1");

    world.renews("m1", 1, 1).unwrap();

    assert!(!world.record("n1").is_reset());
    assert_eq!(
        world.denied(&claim("m2", "n1", 2, 1), 1),
        Denial::NameTaken(name("n1"), provider_id("m1"))
    );
}

#[test]
fn a_denied_renewal_does_not_clear_the_reset() {
    let world = World::held(policy());
    world.reset("n1");

    world.renewal_denied("m2", 1, 1);

    assert!(world.record("n1").is_reset());
}
