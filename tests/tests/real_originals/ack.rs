//! AWS Controllers for Kubernetes.

mod case;
mod compare;
mod generate;
mod rows;

use std::collections::BTreeMap;

use self::case::Case;
use self::compare::{Rule, compare, theirs};
use crate::judge::Judge;
use crate::random::again;
use crate::stored::all_stored;

/// The rules of its differences.
pub const ROWS: &[Rule] = &Rule::ALL;

/// The number of generated cases, of which the API server stores most.
const CASES: usize = 1200;

fn judge() -> Judge {
    Judge::start(
        "ack",
        &[("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "B")],
    )
}

#[test]
fn roles_of_generated_clusters_are_those_of_the_controllers_own_code_or_differ_as_documented() {
    let stored = all_stored((0..CASES).map(generate::case).collect(), Case::all);
    assert!(
        stored.len() > CASES * 4 / 5,
        "of {CASES} cases, {} can be stored; {}",
        stored.len(),
        again()
    );
    let asked: Vec<_> = stored.iter().map(Case::asked).collect();
    let answers = judge().ask_all(&asked);
    let count = stored.len();
    let mut seen: BTreeMap<Rule, usize> = BTreeMap::new();
    let mut alike: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failed = Vec::new();
    for (case, answer) in stored.iter().zip(&answers) {
        let ours = case.resolved();
        match compare(case, &ours, theirs(answer)) {
            Ok(None) => {
                *alike
                    .entry(
                        ours.as_ref()
                            .map_or_else(|error| error.reason(), |_| "role"),
                    )
                    .or_default() += 1
            }
            Ok(Some(rule)) => *seen.entry(rule).or_default() += 1,
            Err(difference) => failed.push(format!(
                "{difference}\n{:#}\n{case:?}\nours: {ours:#?}\ntheirs: {answer}",
                case.asked()
            )),
        }
    }
    println!(
        "{count} cases; alike: {alike:?}; differences: {seen:?}; {}",
        again()
    );
    assert!(
        failed.is_empty(),
        "{} cases differ, the first:\n{}\n{}",
        failed.len(),
        failed[0],
        again()
    );
    for end in [
        "role",
        "CARMMapNotFound",
        "CARMKeyNotFound",
        "CARMEmptyValue",
        "InvalidRoleARN",
        "RoleSelectorConflict",
    ] {
        assert!(
            alike.contains_key(end),
            "no case ends alike with {end}; {}",
            again()
        );
    }
    let unseen: Vec<_> = Rule::ALL
        .iter()
        .filter(|rule| !seen.contains_key(rule))
        .collect();
    assert!(
        unseen.is_empty(),
        "no case has a difference of {unseen:?}; {}",
        again()
    );
}
