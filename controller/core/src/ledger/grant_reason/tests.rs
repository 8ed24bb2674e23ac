use super::*;
use crate::inventory::MachineState;
use crate::ledger::{Adoption, LedgerPolicy, MISSING_MACHINE_TIMEOUT};
use crate::testing::records::{World, at, by_node, claim, insecure, name, policy, provider_id};

#[track_caller]
fn grant_reason(world: &World, claim: &Claim, hour: u32) -> GrantReason {
    world.claims(claim, hour).unwrap().reason
}

#[test]
fn a_first_join_and_a_repeated_join_have_different_grant_reasons() {
    let world = World::new();
    let claim = claim("m1", "n1", 1, 0);

    for expected in [GrantReason::First, GrantReason::Again] {
        let grant_reason = grant_reason(&world, &claim, 0);
        assert_eq!(grant_reason, expected);
        assert!(grant_reason.is_news());
    }
}

#[test]
fn a_renewal_has_the_grant_reason_renewed() {
    let world = World::held(policy());

    let grant = world.renews("m1", 1, 1).unwrap();

    assert_eq!(grant.reason, GrantReason::Renewed);
    assert!(!grant.reason.is_news());
}

#[test]
fn a_reenrollment_with_another_key_contains_its_reason() {
    let gone = World::held(policy());
    let again = claim("m1", "n1", 2, 1);
    let because = |world: &World, claim: &Claim, hour| {
        let grant_reason = grant_reason(world, claim, hour);
        let GrantReason::Reenrolled(because) = grant_reason else {
            panic!("{grant_reason:?}")
        };
        because
    };
    assert_eq!(because(&gone, &again, 1), ReenrolReason::NodeGone);

    let down = World::held(policy());
    down.node("n1", false, 1);
    assert_eq!(because(&down, &again, 1), ReenrolReason::NodeDown);

    let expired = World::new();
    expired
        .claims(&insecure(claim("m1", "n1", 1, 0)), 0)
        .unwrap();
    let late = insecure(claim("m1", "n1", 2, 11));
    assert_eq!(because(&expired, &late, 11), ReenrolReason::Expired);

    let ready = World::held(policy());
    ready.node("n1", true, 9);
    let late = claim("m1", "n1", 2, 11);
    assert_eq!(because(&ready, &late, 11), ReenrolReason::Expired);
}

#[test]
fn a_machine_that_returns_has_the_grant_reason_reenrolled() {
    let mut world = World::held(policy());
    world.becomes("m1", None);
    for sweep in [at(1) - MISSING_MACHINE_TIMEOUT, at(1)] {
        futures::executor::block_on(
            world
                .ledger()
                .sweep_at(sweep, &std::collections::BTreeSet::new()),
        )
        .unwrap();
    }
    world.becomes("m1", Some(MachineState::Ready));

    let grant_reason = grant_reason(&world, &claim("m1", "n1", 2, 2), 2);

    assert_eq!(
        grant_reason,
        GrantReason::Reenrolled(ReenrolReason::Returned)
    );
}

#[test]
fn a_reset_grant_reason_contains_the_released_generation() {
    let world = World::held(policy());
    world.node("n1", true, 1);
    world.reset("n1");

    let grant_reason = grant_reason(&world, &claim("m1", "n1", 2, 1), 1);

    assert_eq!(grant_reason, GrantReason::Reset(1));
    assert_eq!(grant_reason.reason(), "IdentityReset");
    assert_eq!(
        grant_reason.to_string(),
        "reset by an operator (generation 1)"
    );
}

#[test]
fn a_change_of_holder_contains_the_previous_provider_id() {
    let mut world = World::held(policy());
    world.becomes("m1", None);

    let grant_reason = grant_reason(&world, &claim("m2", "n1", 2, 1), 1);

    let from = provider_id("m1");
    assert_eq!(grant_reason, GrantReason::ChangedHands(from));
}

#[test]
fn a_renamed_machine_grant_contains_the_previous_name() {
    let world = World::held(policy());

    let grant_reason = grant_reason(&world, &claim("m1", "n2", 2, 1), 1);

    assert_eq!(grant_reason, GrantReason::Renamed(name("n1")));
}

#[test]
fn an_adopted_node_has_the_grant_reason_adopted() {
    let world = World::with(LedgerPolicy {
        adoption: Adoption::Allow,
        ..policy()
    });
    world.node("n1", true, 1);

    let grant_reason = grant_reason(&world, &by_node(claim("m1", "n1", 1, 1)), 1);

    assert_eq!(grant_reason, GrantReason::Adopted);
}
