//! Tests of claims: first and repeated claims, and claims with another key, machine or name.

use crate::inventory::MachineState;
use crate::ledger::record::GRANT_LAG;
use crate::ledger::*;
use crate::refusal::{Denial, Refusal};
use crate::testing::records::*;

#[test]
fn the_first_claim_creates_a_record() {
    let world = World::new();

    assert_eq!(world.granted(&claim("m1", "n1", 1, 0), 0), 1);

    let record = world.record("n1");
    assert_eq!(record.holder.provider_id, provider_id("m1"));
    assert_eq!(record.holder.machine_name.as_deref(), Some("m1"));
    assert_eq!(record.opened.request.name, "csr-1");
    assert_eq!(record.not_after, at(10));
    assert!(record.is_live());
}

#[test]
fn a_first_claim_waits_while_a_node_of_that_name_is_up() {
    let world = World::new();
    world.node("n1", true, 0);
    assert_eq!(world.waits(&claim("m1", "n1", 1, 0), 0), "NodeAlive");

    world.node("n1", false, 0);
    assert_eq!(world.granted(&claim("m1", "n1", 1, 0), 0), 1);
}

#[test]
fn the_node_that_is_down_is_deleted_once_its_name_is_claimed() {
    let world = World::new();
    world.node("n1", false, 0);

    world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();

    let state = futures::executor::block_on(crate::nodes::Nodes::state(&*world.nodes, &name("n1")));
    assert_eq!(state.unwrap(), None);
    assert_eq!(
        world.record("n1").opened.stale_node.as_deref(),
        Some("node-n1")
    );
}

#[test]
fn a_repeated_claim_with_the_same_key_keeps_its_generation() {
    let world = World::held(policy());
    world.node("n1", true, 5);
    let before = world.record("n1");

    let again = world.claims(&claim("m1", "n1", 1, 5), 5).unwrap();

    assert_eq!(again.uid.generation, 1);
    assert_eq!(again.not_after, at(15));
    assert_eq!(world.record("n1"), before);
}

#[test]
fn a_repeated_key_does_not_renew_an_insecure_certificate() {
    let world = World::new();
    let claims = |hour| {
        world
            .claims(&insecure(claim("m1", "n1", 1, hour)), hour)
            .unwrap()
    };

    assert_eq!(claims(0).not_after, at(10));
    assert_eq!(claims(5).not_after, at(10));
    assert_eq!(claims(10).not_after, at(10));
    let next = claims(11);
    assert_eq!(
        (next.uid.generation, next.not_after),
        (opened_at(11), at(21))
    );
}

#[test]
fn a_claim_with_another_key_waits_until_the_node_is_down() {
    let world = World::held(policy());
    world.node("n1", true, 1);
    assert_eq!(world.waits(&claim("m1", "n1", 2, 1), 1), "IdentityLive");

    world.node("n1", false, 1);
    assert_eq!(world.granted(&claim("m1", "n1", 2, 1), 1), opened_at(1));

    let record = world.record("n1");
    assert_eq!(record.former_until, Some(at(21) + GRANT_LAG));
    assert!(matches!(
        world.renewal_denied("m1", 1, 2),
        Denial::FormerCertificate { .. }
    ));
    world.renews("m1", opened_at(1), 2).unwrap();
}

#[test]
fn a_new_key_opens_a_generation_once_the_node_is_deleted() {
    let world = World::held(policy());

    assert_eq!(world.granted(&claim("m1", "n1", 2, 1), 1), opened_at(1));
}

#[test]
fn a_claim_with_another_key_waits_until_certificates_and_lease_expire() {
    let world = World::held(policy());
    // The Node stays Ready, because no component marks it as not ready.
    world.node("n1", true, 10);
    assert_eq!(world.waits(&claim("m1", "n1", 2, 10), 10), "IdentityLive");
    assert_eq!(world.waits(&claim("m1", "n1", 2, 11), 11), "IdentityLive");

    world.node("n1", true, 9);
    assert_eq!(world.waits(&claim("m1", "n1", 2, 10), 10), "IdentityLive");
    assert_eq!(world.granted(&claim("m1", "n1", 2, 11), 11), opened_at(11));
}

#[test]
fn a_reset_applies_once_and_only_to_its_generation() {
    let world = World::held(policy());
    world.node("n1", true, 1);
    world.reset("n1");
    assert_eq!(world.granted(&claim("m1", "n1", 2, 1), 1), opened_at(1));
    assert_eq!(world.record("n1").reset, None);

    world.edit("n1", |record| record.reset = Some(1));
    assert_eq!(world.waits(&claim("m1", "n1", 3, 1), 1), "IdentityLive");
}

#[test]
fn an_insecure_machine_with_another_key_waits_until_expiry() {
    let world = World::new();
    world.claims(&insecure(claim("m1", "n1", 1, 0)), 0).unwrap();

    let again = |hour| insecure(claim("m1", "n1", 2, hour));
    assert_eq!(world.waits(&again(1), 1), "IdentityLive");
    assert_eq!(world.waits(&again(10), 10), "IdentityLive");
    assert_eq!(world.granted(&again(11), 11), opened_at(11));
    world.reset("n1");
    assert_eq!(
        world.granted(&insecure(claim("m1", "n1", 3, 12)), 12),
        opened_at(12)
    );
}

#[test]
fn an_attested_machine_without_evidence_waits_until_its_record_is_reset() {
    let world = World::held(policy());

    for hour in [1, 40, 400] {
        for name in ["n1", "n2"] {
            let unproved = insecure(claim("m1", name, 2, hour));
            assert_eq!(world.waits(&unproved, hour), "EvidenceExpected");
        }
    }

    world.reset("n1");
    let unproved = insecure(claim("m1", "n1", 2, 400));
    assert_eq!(world.granted(&unproved, 400), opened_at(400));
    assert!(!world.record("n1").holder.is_attested());
}

#[test]
fn a_name_held_by_a_live_machine_is_denied_to_others() {
    let world = World::held(policy());

    for key in [1, 2] {
        assert_eq!(
            world.denied(&claim("m2", "n1", key, 30), 30),
            Denial::NameTaken(name("n1"), provider_id("m1"))
        );
    }
}

#[test]
fn a_claim_by_another_machine_waits_until_the_holder_is_deleted() {
    let mut world = World::held(policy());
    world.node("n1", true, 1);
    world.becomes("m1", Some(MachineState::Deleting));
    assert_eq!(world.waits(&claim("m2", "n1", 2, 1), 1), "HolderLeaving");

    world.becomes("m1", None);
    let before = world.record("n1");
    assert_eq!(world.waits(&claim("m2", "n1", 2, 1), 1), "NodeAlive");
    world.node("n1", false, 1);
    assert_eq!(world.granted(&claim("m2", "n1", 2, 1), 1), opened_at(1));

    let record = world.record("n1");
    assert_eq!(record.holder.provider_id, provider_id("m2"));
    assert_eq!(record.uid, before.uid);
    assert_eq!(record.opened.stale_node.as_deref(), Some("node-n1"));
    let state = futures::executor::block_on(crate::nodes::Nodes::state(&*world.nodes, &name("n1")));
    assert_eq!(state.unwrap(), None);
    assert!(matches!(
        world.renewal_denied("m1", 1, 1),
        Denial::FormerCertificate { .. }
    ));
}

#[test]
fn a_machine_can_change_its_name_once_its_previous_node_is_down() {
    let world = World::held(policy());
    world.node("n1", true, 1);
    assert_eq!(world.waits(&claim("m1", "n2", 2, 1), 1), "IdentityLive");
    assert!(world.record("n1").is_live());

    world.node("n1", false, 1);
    assert_eq!(world.granted(&claim("m1", "n2", 2, 1), 1), 1);

    let tombstone = world.record("n1").tombstone.unwrap();
    assert_eq!(tombstone.reason, TombstoneReason::Renamed);
    assert!(matches!(
        world.renewal_denied("m1", 1, 1),
        Denial::FormerCertificate { .. }
    ));
}

#[test]
fn a_machine_that_is_denied_a_new_name_keeps_its_current_name() {
    let world = World::held(policy());
    world.claims(&claim("m2", "n2", 2, 0), 0).unwrap();

    assert!(matches!(
        world.denied(&claim("m1", "n2", 3, 1), 1),
        Denial::NameTaken { .. }
    ));
    assert!(world.record("n1").is_live());
}

#[test]
fn a_machine_can_return_to_its_previous_name() {
    let world = World::held(policy());
    world.claims(&claim("m1", "n2", 2, 1), 1).unwrap();

    assert_eq!(world.granted(&claim("m1", "n1", 3, 2), 2), opened_at(2));

    assert!(world.record("n1").is_live());
    assert!(!world.record("n2").is_live());
}

#[test]
fn a_revoked_machine_is_denied_until_it_is_reset() {
    let world = World::held(policy());
    world.revoke("n1", 1);

    let revoked = Denial::IdentityRevoked(name("n1"), 1);
    assert_eq!(world.denied(&claim("m1", "n1", 1, 1), 1), revoked);
    assert_eq!(world.denied(&claim("m1", "n1", 2, 1), 1), revoked);
    assert_eq!(world.denied(&claim("m1", "n2", 2, 1), 1), revoked);
    assert_eq!(world.renewal_denied("m1", 1, 1), revoked);

    world.reset("n1");
    assert_eq!(world.granted(&claim("m1", "n1", 2, 1), 1), opened_at(1));
    world.renews("m1", opened_at(1), 1).unwrap();
}

#[test]
fn a_running_node_is_adopted_only_if_the_policy_allows_it() {
    let refusing = World::new();
    let adopting = World::with(LedgerPolicy {
        adoption: Adoption::Allow,
        ..policy()
    });
    let claim = by_node(claim("m1", "n1", 1, 0));
    adopting.node("n1", true, 0);

    assert_eq!(refusing.denied(&claim, 0), Denial::RequesterUidMissing);
    assert_eq!(adopting.granted(&claim, 0), 1);
    assert_eq!(adopting.granted(&claim, 0), 1);
}

#[test]
fn an_adopting_certificate_cannot_take_the_record_of_another_machine() {
    let mut world = World::held(LedgerPolicy {
        adoption: Adoption::Allow,
        ..policy()
    });
    let claim = by_node(claim("m2", "n1", 2, 1));
    assert!(matches!(world.denied(&claim, 1), Denial::NameTaken { .. }));

    world.becomes("m1", None);
    assert_eq!(world.denied(&claim, 1), Denial::RequesterUidMissing);
}

#[test]
fn a_certificate_without_uid_opens_a_generation_only_after_a_reset() {
    let renewal = by_node(claim("m1", "n1", 2, 5));
    let world = World::held(LedgerPolicy {
        adoption: Adoption::Allow,
        ..policy()
    });
    world.node("n1", true, 5);
    assert_eq!(world.waits(&renewal, 5), "IdentityLive");
    world.reset("n1");
    assert_eq!(world.granted(&renewal, 5), opened_at(5));

    let refusing = World::held(policy());
    refusing.node("n1", true, 5);
    refusing.reset("n1");
    assert_eq!(refusing.denied(&renewal, 5), Denial::RequesterUidMissing);
}

#[test]
fn a_renewal_with_a_foreign_record_generation_or_machine_is_denied() {
    let world = World::new();
    assert_eq!(
        world.renewal_denied("m1", 1, 0),
        Denial::RecordMissing(name("n1"))
    );
    world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
    let before = world.record("n1");

    world.renews("m1", 1, 9).unwrap();
    assert_eq!(world.record("n1"), before, "a renewal writes nothing");
    assert!(matches!(
        world.renewal_denied("m1", 2, 9),
        Denial::FormerCertificate { .. }
    ));
    assert!(matches!(
        world.renewal_denied("m2", 1, 9),
        Denial::NameTaken { .. }
    ));
    world.claims(&claim("m2", "n2", 2, 1), 1).unwrap();
    let other = Renewal {
        uid: world.record("n2").certificate_uid(),
        ..renewal("m1", 1, 9)
    };
    assert_ne!(other.uid, before.certificate_uid());
    let denied = futures::executor::block_on(world.ledger().renew(&other, other.asked));
    let Err(Refusal::Deny(denied)) = denied else {
        panic!("not denied: {denied:?}");
    };
    assert_eq!(denied, Denial::FormerCertificate(name("n1"), other.uid));
}

#[test]
fn a_first_claim_with_the_key_of_another_live_record_is_denied() {
    let world = World::held(policy());
    let copy = claim("m2", "n2", 1, 1);

    assert_eq!(
        world.denied(&copy, 1),
        Denial::KeyOfAnotherMachine(name("n1"), provider_id("m1"))
    );
    assert_eq!(world.granted(&claim("m2", "n2", 2, 1), 1), 1);
}

#[test]
fn a_new_generation_with_the_key_of_another_live_record_is_denied() {
    let world = World::held(policy());
    world.claims(&claim("m2", "n2", 2, 1), 1).unwrap();

    assert!(matches!(
        world.denied(&claim("m2", "n2", 1, 2), 2),
        Denial::KeyOfAnotherMachine { .. }
    ));
}

#[test]
fn a_key_can_be_reused_after_a_rename_or_a_tombstone() {
    let world = World::held(policy());
    assert_eq!(world.granted(&claim("m1", "n2", 1, 1), 1), 1);
    assert!(!world.record("n1").is_live());

    world.edit("n2", |record| {
        *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(1));
    });
    assert_eq!(world.granted(&claim("m2", "n3", 1, 2), 2), 1);
}

/// A claim without evidence, from this Machine and for this provider ID.
fn claiming(machine: &str, of: &str, node: &str, key: u8, hour: u32) -> Claim {
    Claim {
        machine_name: Some(machine.to_owned()),
        ..insecure(claim(of, node, key, hour))
    }
}

/// Machines `m1` and `m2`, for which the infrastructure has not set provider IDs.
fn unnamed() -> World {
    let mut world = World::new();
    world.machines = ["m1", "m2"].map(crate::inventory::Machine::new).to_vec();
    world
}

#[test]
fn a_machine_with_a_changed_provider_id_waits_for_certificate_expiry() {
    let world = unnamed();
    world.granted(&claiming("m1", "m8", "n1", 1, 0), 0);
    let again = claiming("m1", "m1", "n1", 1, 11);

    assert_eq!(world.waits(&again, 9), "IdentityLive");
    assert_eq!(world.granted(&again, 11), opened_at(11));
    assert_eq!(world.record("n1").holder.provider_id, provider_id("m1"));
}

#[test]
fn a_revoked_machine_cannot_rejoin_with_another_provider_id() {
    for is_retired in [false, true] {
        let world = unnamed();
        world.granted(&claiming("m1", "m8", "n1", 1, 0), 0);
        world.revoke("n1", 1);
        if is_retired {
            world.edit("n1", |record| {
                *record = record.retired(TombstoneReason::MachineGone, LONGEST, at(2));
            });
        }
        let again = claiming("m1", "m1", "n1", 2, 11);

        assert_eq!(world.denied(&again, 11).reason(), "IdentityRevoked");
        world.reset("n1");
        assert_eq!(world.granted(&again, 11), opened_at(11));
    }
}

#[test]
fn a_provider_id_from_the_infrastructure_overrides_the_record() {
    let mut world = unnamed();
    world.granted(&claiming("m1", "m8", "n1", 1, 0), 0);
    world.becomes("m1", Some(MachineState::Ready));

    assert_eq!(
        world.granted(&claiming("m1", "m1", "n1", 2, 1), 1),
        opened_at(1)
    );
}

#[test]
fn a_guessed_provider_id_does_not_block_its_pool_member() {
    let mut world = unnamed();
    world.granted(&claiming("m1", "m8", "n1", 1, 0), 0);
    let member = provider_id("m8");
    world.machines.push(crate::inventory::Machine {
        provider_id: Some(member.clone()),
        ..crate::inventory::Machine::new(member.as_str())
    });

    let claimed = claiming(member.as_str(), "m8", "n8", 2, 1);
    assert_eq!(world.granted(&claimed, 1), 1);
    assert!(world.record("n1").is_live());
}

#[test]
fn a_provider_id_claimed_without_evidence_does_not_block_its_machine() {
    for claimed in [claiming("m2", "m2", "n2", 2, 1), claim("m2", "n2", 2, 1)] {
        let world = unnamed();
        world.granted(&claiming("m1", "m2", "n1", 1, 0), 0);
        world.node("n1", true, 1);

        assert_eq!(world.granted(&claimed, 1), 1);
        assert!(world.record("n1").is_live());
    }
}
