//! Tests of the protocol between two replicas, with every interleaving.
//!
//! The real `RecordLedger` runs as tasks that stop before each call to the world. A search tries every order of the
//! next calls, of the watch events that reach a replica's cache, and of one crash. It checks the invariants in every
//! state. A state that is already known is not searched again. The results of a task's calls determine the task's
//! state.
//!
//! | invariant | |
//! | --- | --- |
//! | one record for each name | its UID never changes, and its generation never decreases |
//! | one opening for each generation | all certificates of a generation have one key and one machine |
//! | no certificate without a record | a certificate's record exists, and its generation was reached |
//! | one live identity | at most one certificate of a machine belongs to the current generation of a live record |
//! | no node without a certificate | the certificate with which a node renews remains valid until it has used the next one |
//! | no task hangs | every task ends with a certificate or a reason |
//! | recovery | after one more attempt for each request, a machine has one live record, and a renewal has its
//! certificate |

mod search;
mod world;

use std::collections::BTreeSet;

use search::{Outcome, Violation, search};
use world::{Flaw, Scenario, before};

use crate::ledger::{Claim, Claimant};
use crate::testing::records::{claim, insecure};

fn scenario(claims: [Claim; 2]) -> Scenario {
    Scenario::new(claims)
}

/// The outcomes of the two requests, in all orders.
#[track_caller]
fn outcomes(scenario: &Scenario) -> BTreeSet<[Outcome; 2]> {
    match search(scenario) {
        Ok(found) => {
            assert!(found.states > 100, "{} states", found.states);
            found.outcomes
        }
        Err(Violation { what, path }) => panic!("{what}\n{}", path.join("\n")),
    }
}

#[track_caller]
fn is_broken(scenario: &Scenario, by: Flaw) -> String {
    let broken = scenario.clone().with(by);
    match search(&broken) {
        Ok(found) => panic!(
            "{by:?} does not violate an invariant in {} states",
            found.states
        ),
        Err(Violation { what, .. }) => what,
    }
}

fn issued(outcomes: &BTreeSet<[Outcome; 2]>) -> BTreeSet<usize> {
    outcomes
        .iter()
        .map(|both| both.iter().filter(|one| **one == Outcome::Issued).count())
        .collect()
}

fn reasons(outcomes: &BTreeSet<[Outcome; 2]>) -> BTreeSet<&'static str> {
    outcomes
        .iter()
        .flatten()
        .filter_map(|outcome| match outcome {
            Outcome::Issued => None,
            Outcome::Refused(reason) => Some(*reason),
        })
        .collect()
}

fn one_request() -> Scenario {
    scenario([claim("m1", "n1", 1, 0), claim("m1", "n1", 1, 0)])
}

fn two_keys() -> Scenario {
    scenario([claim("m1", "n1", 1, 0), claim("m1", "n1", 2, 0)])
}

fn two_machines() -> Scenario {
    scenario([claim("m1", "n1", 1, 0), claim("m2", "n1", 2, 0)])
}

/// Without evidence, a machine keeps its name until its certificate expires. Otherwise, the two machines would take the
/// name from each other repeatedly.
fn two_names() -> Scenario {
    scenario([
        insecure(claim("m1", "n1", 1, 0)),
        insecure(claim("m1", "n2", 2, 0)),
    ])
}

#[test]
fn one_request_at_two_replicas_creates_one_record() {
    let outcomes = outcomes(&one_request());

    assert_eq!(issued(&outcomes), [2].into(), "{outcomes:?}");
}

#[test]
fn two_keys_at_two_replicas_get_one_generation_each() {
    let outcomes = outcomes(&two_keys());

    assert!(reasons(&outcomes).is_subset(&["IdentityLive", "RecordContended"].into()));
    assert!(!issued(&outcomes).contains(&0), "{outcomes:?}");
}

#[test]
fn two_keys_from_one_unattested_machine_get_one_certificate() {
    let scenario = scenario([
        insecure(claim("m1", "n1", 1, 0)),
        insecure(claim("m1", "n1", 2, 0)),
    ]);

    let outcomes = outcomes(&scenario);

    assert_eq!(issued(&outcomes), [1].into(), "{outcomes:?}");
    assert_eq!(reasons(&outcomes), ["IdentityLive"].into());
}

#[test]
fn two_replicas_grant_one_name_to_one_of_two_machines() {
    let outcomes = outcomes(&two_machines());

    assert_eq!(issued(&outcomes), [1].into(), "{outcomes:?}");
    assert_eq!(reasons(&outcomes), ["NameTaken"].into());
}

#[test]
fn two_replicas_grant_a_machine_one_of_two_names() {
    let outcomes = outcomes(&two_names());

    assert!(
        reasons(&outcomes).is_subset(&["IdentityLive", "RecordContended"].into()),
        "{outcomes:?}"
    );
}

#[test]
fn a_released_name_is_granted_to_one_of_two_machines() {
    let former = claim("m0", "n1", 9, 0);

    let outcomes = outcomes(&two_machines().held_by(former));

    assert_eq!(issued(&outcomes), [1].into(), "{outcomes:?}");
    assert_eq!(reasons(&outcomes), ["NameTaken"].into());
}

/// A node without evidence renews with evidence, with this certificate. The two requests of the node use these keys.
fn strengthened(keys: [u8; 2]) -> Scenario {
    let renewal = |key| Claim {
        claimant: Claimant::Renewal(before()),
        ..claim("m1", "n1", key, 0)
    };
    scenario(keys.map(renewal)).held_by(insecure(claim("m1", "n1", 9, 0)))
}

/// The second key belongs to a node that did not receive the first answer.
#[test]
fn an_upgrade_to_evidence_keeps_the_old_certificate_in_each_crash() {
    let outcomes = outcomes(&strengthened([1, 2]));

    assert!(
        reasons(&outcomes).is_subset(&["RecordContended"].into()),
        "{outcomes:?}"
    );
    assert!(!issued(&outcomes).contains(&0), "{outcomes:?}");
}

/// The record of the node is lost, and the node renews with its certificate. The two requests of the node use these
/// keys.
fn lost(keys: [u8; 2]) -> Scenario {
    let renewal = |key| Claim {
        claimant: Claimant::Renewal(before()),
        ..claim("m1", "n1", key, 0)
    };
    scenario(keys.map(renewal)).recovering()
}

#[test]
fn a_lost_record_is_recovered_once_in_each_order_and_crash() {
    let outcomes = outcomes(&lost([1, 2]));

    assert!(
        reasons(&outcomes).is_subset(&["RecordContended"].into()),
        "{outcomes:?}"
    );
    assert!(!issued(&outcomes).contains(&0), "{outcomes:?}");
}

#[test]
fn each_missing_rule_breaks_an_invariant_of_the_model() {
    // A new record overwrites an existing record.
    is_broken(&two_machines(), Flaw::CreateOverwrites);
    // A write overwrites an object, although the object has changed since it was read.
    let held = two_machines().held_by(claim("m0", "n1", 9, 0));
    is_broken(&held, Flaw::ReplaceIgnoresVersion);
    // A claim does not wait until the cache contains the claim's record.
    is_broken(&two_names(), Flaw::CacheIsBelieved);
    // The generation does not increase.
    is_broken(&two_keys(), Flaw::GenerationStays);
    // A renewal with stronger evidence ends the previous generation.
    for scenario in [strengthened([1, 2]), lost([1, 2])] {
        let broken = is_broken(&scenario, Flaw::FormerEnds);
        assert!(broken.contains("the node has no other"), "{broken}");
    }
}
