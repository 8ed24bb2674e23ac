//! Tests of the wait until a previous certificate expires, and of the clock that determines this wait.

use std::time::Duration;

use futures::executor::block_on;

use crate::ledger::Claim;
use crate::nodes::Node;
use crate::refusal::{Deferral, Refusal};
use crate::testing::records::*;

#[test]
fn a_wait_for_the_previous_certificate_contains_its_expiry() {
    let world = World::held(policy());
    world.node("n1", true, 10);
    let waits = |world: &World, claim: &Claim, hour| match world.claims(claim, hour) {
        Err(Refusal::Retry(deferral @ Deferral::IdentityLive(..))) => deferral.to_string(),
        other => panic!("the claim does not wait for a certificate: {other:?}"),
    };
    let begin = "the machine has a certificate for node n1 that might still be valid; the request waits until ";

    for (hour, end) in [
        (
            10,
            "the Node is down, or until 2027-01-15T18:00:00Z if the node does not renew its certificate",
        ),
        (11, "the Node is down"),
    ] {
        let text = waits(&world, &claim("m1", "n1", 2, hour), hour);
        assert_eq!(text, format!("{begin}{end}"));
    }

    let unproved = World::new();
    unproved.granted(&insecure(claim("m1", "n1", 1, 0)), 0);
    let another = |hour| insecure(claim("m1", "n1", 2, hour));
    assert_eq!(
        waits(&unproved, &another(10), 10),
        format!("{begin}2027-01-15T18:00:00Z")
    );
    assert_eq!(unproved.granted(&another(11), 11), opened_at(11));
}

#[test]
fn a_wall_clock_jump_does_not_change_node_states() {
    let year = Duration::from_hours(24 * 365);
    for clock in [at(1) + year, at(1), at(1) - year] {
        let world = World::held(policy());
        world.nodes.show_time(at(1));
        let claims = |world: &World| {
            let claim = claim("m1", "n1", 2, 1);
            block_on(world.ledger().claim(&claim, clock))
        };
        let mut node = Node {
            uid: "of-m1".to_owned(),
            ready: false,
            lease_renewed: Some(at(1)),
            provider_id: None,
            created: Some(at(0)),
        };
        world.nodes.put(name("n1"), node.clone());

        assert!(matches!(
            claims(&world),
            Err(Refusal::Retry(Deferral::IdentityLive(..)))
        ));

        node.lease_renewed = Some(at(0));
        world.nodes.put(name("n1"), node);
        assert!(claims(&world).is_ok(), "{clock:?}");
    }
}
