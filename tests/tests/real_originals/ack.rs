//! Comparisons with AWS Controllers for Kubernetes.

mod case;
mod compare;
mod generate;
mod rows;
mod runtime;

use std::collections::BTreeMap;

use serde_json::Value;

use self::case::Case;
use self::compare::{Rule, compare};
use self::runtime::{Answer, answer};
use crate::judge::Judge;
use crate::random::again;
use crate::stored::all_stored;

/// The rules that explain the differences.
pub const ROWS: &[Rule] = &Rule::ALL;

/// The number of generated cases.
const CASES: usize = 1200;

fn judge() -> Judge {
    Judge::start(
        "ack",
        &[("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "B")],
    )
}

/// The judge's answers to the original case and to the visible case.
#[derive(Debug)]
struct Answers {
    given: Answer,
    visible: Answer,
}

fn judged(cases: &[Case]) -> Vec<Answers> {
    let of_judge =
        |cases: &[Value]| -> Vec<Answer> { judge().ask_all(cases).iter().map(answer).collect() };
    let given: Vec<_> = cases.iter().map(Case::asked).collect();
    let visible: Vec<_> = cases.iter().map(|case| case.visible().asked()).collect();
    let hiding = given
        .iter()
        .zip(&visible)
        .filter(|(given, visible)| given != visible);
    let hiding: Vec<_> = hiding.map(|(_, visible)| visible.clone()).collect();
    let mut of_hiding = of_judge(&hiding).into_iter();
    let answers = of_judge(&given).into_iter().zip(given.iter().zip(&visible));
    answers
        .map(|(answer, (given, visible))| Answers {
            visible: if given == visible {
                answer.clone()
            } else {
                of_hiding.next().unwrap()
            },
            given: answer,
        })
        .collect()
}

#[test]
fn generated_ack_roles_match_the_original_code_except_as_documented() {
    let stored = all_stored((0..CASES).map(generate::case).collect(), Case::all);
    let count = stored.len();
    assert_eq!(count, CASES);
    let mut seen: BTreeMap<Rule, usize> = BTreeMap::new();
    let mut alike: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failed = Vec::new();
    for (case, answers) in stored.iter().zip(judged(&stored)) {
        let ours = case.resolved();
        match compare(case, &ours, &answers.given, &answers.visible) {
            Ok(rules) if rules.is_empty() => {
                let end = ours
                    .as_ref()
                    .map_or_else(|error| error.reason(), |_| "role");
                *alike.entry(end).or_default() += 1;
            }
            Ok(rules) => rules
                .into_iter()
                .for_each(|rule| *seen.entry(rule).or_default() += 1),
            Err(difference) => failed.push(format!(
                "{difference}\n{:#}\n{case:?}\nours: {ours:#?}\ntheirs: {answers:?}",
                case.asked()
            )),
        }
    }
    println!(
        "{count} cases compared; alike: {alike:?}; differences: {seen:?}; {}",
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
