//! Comparisons with Cluster API Provider AWS.

mod case;
mod compare;
mod generate;
mod rows;
mod sides;

use std::collections::{BTreeMap, BTreeSet};

use self::case::Case;
use self::compare::{Rule, compare};
use self::sides::{Bed, Sides};
use crate::random::again;
use crate::stored::all_stored;

/// The rules that explain the differences.
pub const ROWS: &[Rule] = &Rule::ALL;

/// The number of generated cases.
const CASES: usize = 1500;

/// Runs a case, and returns the rules that explain its differences. A difference without a rule fails the test.
#[track_caller]
fn judged(bed: &mut Bed, case: Case) -> (Sides, BTreeSet<Rule>) {
    let sides = bed.judge(case);
    match compare(&sides) {
        Ok(rules) => (sides, rules),
        Err(difference) => panic!("{difference}\n{}", shown(&sides)),
    }
}

fn shown(sides: &Sides) -> String {
    format!(
        "{}\nours: {:#?}\ntheirs: {:#?}\ntheir conditions: {:?}\n{}",
        sides.case.shown(),
        sides.ours,
        sides.theirs,
        sides.reasons,
        again()
    )
}

#[test]
fn generated_capa_identities_match_the_original_except_as_documented() {
    let sent = (0..CASES)
        .map(generate::case)
        .chain([generate::deep(CASES)]);
    let stored = all_stored(sent.collect(), Case::all);
    let mut bed = Bed::start();
    let count = stored.len();
    assert_eq!(count, CASES + 1);
    let mut seen: BTreeMap<Rule, usize> = BTreeMap::new();
    let mut alike: BTreeMap<String, usize> = BTreeMap::new();
    let mut failed = Vec::new();
    for case in stored {
        let sides = bed.judge(case);
        match compare(&sides) {
            Ok(rules) if rules.is_empty() => {
                *alike.entry(sides.ours.end.to_string()).or_default() += 1
            }
            Ok(rules) => rules
                .into_iter()
                .for_each(|rule| *seen.entry(rule).or_default() += 1),
            Err(difference) => failed.push(format!("{difference}\n{}", shown(&sides))),
        }
    }
    println!(
        "{count} cases compared; alike: {alike:?}; differences: {seen:?}; {}",
        again()
    );
    assert!(
        failed.is_empty(),
        "{} cases differ, the first:\n{}",
        failed.len(),
        failed[0]
    );
    for end in [
        "keys",
        "UsageUnauthorized",
        "SourceUsageUnauthorized",
        "BadSelector",
        "IdentityNotFound",
        "NotSingleton",
        "SecretNotFound",
        "SecretMalformed",
        "AccessDenied",
        "InvalidClientTokenId",
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
