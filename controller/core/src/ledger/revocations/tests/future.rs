//! Tests of decisions whose time is later than the controller's clock.

use super::*;

/// A permitted difference between two clocks.
const DIFFERENCE: Duration = Duration::from_mins(10);

#[test]
fn decisions_in_the_future_have_no_effect() {
    let decided = |time: SystemTime| {
        let mut decisions = RevocationDecisions {
            floor: unix_seconds(time),
            workload_uid: Some("a".to_owned()),
            ..RevocationDecisions::default()
        };
        decisions.release(provider_id("m1"), time);
        decisions
    };
    for time in [at(0), at(2), at(2) + DIFFERENCE] {
        assert_eq!(decided(time).until(at(2)), decided(time));
    }
    for time in [at(2) + DIFFERENCE + Duration::from_secs(1), at(3)] {
        let without = RevocationDecisions {
            floor: 0,
            released: BTreeMap::new(),
            ..decided(time)
        };
        assert_eq!(decided(time).until(at(2)), without);
        // The value takes effect when the clock reaches the time.
        assert_eq!(decided(time).until(time), decided(time));
    }
}

#[test]
fn a_floor_in_the_future_does_not_replace_the_known_floor() {
    let read = |floor: u64| {
        let decisions = RevocationDecisions {
            floor,
            ..RevocationDecisions::default()
        };
        decisions.until_or(at(2), 7).floor
    };
    let latest = unix_seconds(at(2) + DIFFERENCE);

    assert_eq!(read(latest), latest);
    assert_eq!(read(latest + 1), 7);
    // The annotation was removed.
    assert_eq!(read(0), 0);
}

#[test]
fn the_known_floor_is_also_read_from_the_list_of_the_workload_cluster() {
    let latest = unix_seconds(at(2) + DIFFERENCE);
    let known = |decided: u64, listed: Option<u64>| {
        let revocations = Revocations::unread();
        if let Some(floor) = listed {
            revocations.read(RevokedNodeCredentialsSpec {
                lowest_valid_generation: floor,
                ..RevokedNodeCredentialsSpec::default()
            });
        }
        revocations.decide(RevocationDecisions {
            floor: decided,
            ..RevocationDecisions::default()
        });
        revocations.known_floor(at(2))
    };

    // After a restart, the annotation contains only the value in the future.
    assert_eq!(known(0, None), None);
    assert_eq!(known(0, Some(7)), Some(7));
    assert_eq!(known(0, Some(0)), Some(0));
    assert_eq!(known(7, None), Some(7));
    assert_eq!(known(7, Some(9)), Some(9));
    assert_eq!(known(9, Some(7)), Some(9));
    // The workload cluster is not trusted to set a value in the future.
    assert_eq!(known(7, Some(latest)), Some(latest));
    assert_eq!(known(7, Some(latest + 1)), Some(7));
}

#[test]
fn a_floor_above_every_possible_generation_rejects_no_certificate() {
    let world = World::held(policy());
    let decisions = RevocationDecisions {
        floor: u64::MAX,
        ..RevocationDecisions::default()
    };

    world.revocations.decide(decisions.until(at(1)));

    assert!(world.revocations.is_empty());
    assert_eq!(world.revocations.decisions().floor, 0);
}

#[test]
fn a_revocation_in_the_future_has_the_time_of_the_claim() {
    let world = World::held(policy());
    let listed = |hour: u32| {
        world.revoke("n1", hour);
        let list = published(&world, 2);
        let key = list.revoked_keys.into_values().next().unwrap();
        let generations = list.revoked.into_values().next().unwrap();
        (key.revoked_at, key.until, generations.until)
    };
    let claimed = world.record("n1").opened.time;
    let (at_the_claim, until, _) = listed(0);
    assert_eq!(at_the_claim, at(0));

    // A release at the present time ends the revocation.
    assert_eq!(listed(1000), (claimed, until, until));
    assert_eq!(listed(2).0, at(2));
}
