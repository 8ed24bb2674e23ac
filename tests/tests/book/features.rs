//! Checks the tables with exit codes, features and scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kubelet_authenticator::failure::Code;
use kubelet_authenticator_tests::docs::{ambiguous, named, numbered, page};
use kubelet_authenticator_tests::page::repository;

use crate::commands::{CONTROLLER, Help};
use crate::markdown::{inline_code, links};
use crate::options::SIGNER;
use crate::{PLUGIN, PLUGINS, pages};

/// The exit codes in the help of this program, as rows of a table.
fn exit_codes(program: &str) -> Vec<String> {
    let mut help = Help::default();
    let help = help.of(&[program.to_owned()]);
    let (_, codes) = help.split_once("\nExit codes:\n").unwrap();
    let lines = codes.lines().filter(|line| !line.is_empty());
    let rows = lines.map(|line| {
        let (code, meaning) = line.trim().split_once("  ").unwrap();
        format!("| {code} | {} |", meaning.trim())
    });
    rows.collect()
}

#[test]
fn the_page_lists_the_exit_codes_that_help_prints() {
    let page = page("exit-codes.md");
    let (plugin, controller) = page.split_once("## Controller").unwrap();
    let (controller, signer) = controller.split_once("## PKCS #11 signer").unwrap();

    for provider in PLUGINS {
        let rows = exit_codes(&format!("{PLUGIN}{provider}"));
        assert_eq!(rows.len(), Code::MEANINGS.len() + 1);
        let table = format!("| code | meaning |\n| --- | --- |\n{}\n\n", rows.join("\n"));
        assert!(plugin.contains(&table), "{provider}: {table}");
    }
    let rows = exit_codes(CONTROLLER);
    let listed = controller
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(2);
    let listed: Vec<_> = listed
        .map(|line| line.split(" | ").take(2).collect::<Vec<_>>().join(" | ") + " |")
        .collect();
    assert_eq!(listed, rows);
    let rows = exit_codes(SIGNER);
    let table = format!("| code | meaning |\n| --- | --- |\n{}\n", rows.join("\n"));
    assert!(signer.ends_with(&table), "{table}");
}

#[test]
fn every_exit_code_is_in_the_symptom_tables() {
    let page = page("exit-codes.md");
    let (_, page) = page.split_once("### Causes and remedies").unwrap();
    for code in (1..=u8::MAX).filter(|code| Code::from_number(*code).is_some()) {
        let mut rows = page.lines();
        let found = rows.any(|line| line.starts_with(&format!("| {code} |")));
        assert!(found, "exit-codes.md has no row for {code}");
    }
}

#[test]
fn every_reason_and_value_in_the_guide_is_in_the_reference() {
    const GUIDE: [&str; 9] = [
        "start",
        "install",
        "adopt",
        "operate",
        "upgrade",
        "ca-rotation",
        "disasters",
        "troubleshooting",
        "support",
    ];
    let of_guide = |path: &str| GUIDE.iter().any(|name| path == format!("docs/{name}.md"));
    let pages = pages();
    let (guide, reference): (Vec<_>, Vec<_>) = pages.iter().partition(|(path, _)| of_guide(path));
    let explained: BTreeSet<&str> = reference
        .iter()
        .flat_map(|(_, text)| text.split(|c: char| !c.is_ascii_alphanumeric()))
        .collect();

    let mut unknown = Vec::new();
    for (path, text) in guide {
        for word in inline_code(text) {
            let capital = word.starts_with(|c: char| c.is_ascii_uppercase());
            let mixed = word.bytes().any(|b| b.is_ascii_lowercase());
            let word = word.as_str();
            let whole = word.bytes().all(|b| b.is_ascii_alphanumeric());
            if capital && mixed && whole && !explained.contains(word) {
                unknown.push(format!("{path}: {word}"));
            }
        }
    }

    assert_eq!(unknown, Vec::<String>::new());
}

/// The states of a feature.
const STATES: [&str; 3] = ["done", "partial", "not built"];

#[test]
fn every_feature_is_listed_once_in_order_with_its_evidence() {
    let page = page("features.md");
    let rows = numbered(&page, "## The features");

    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=84).collect::<Vec<_>>());
    for (number, cells) in &rows {
        let [_, feature, state, place, shown] = cells[..] else {
            panic!("{number} has other cells: {cells:?}");
        };
        assert!(!feature.is_empty() && !place.is_empty(), "{cells:?}");
        assert!(STATES.contains(&state), "{number} is {state}");
        let nothing = named(shown).is_empty() && links(shown).is_empty();
        assert!(
            state == "not built" || !nothing,
            "nothing shows {number}: {shown}"
        );
    }
    let done = rows.iter().filter(|(_, cells)| cells[2] == "done").count();
    let count = format!("{done} of 84 are done");
    assert!(page.contains(&count), "the page does not say that {count}");
    assert_eq!(ambiguous(&page), BTreeMap::new());
}

#[test]
fn upgrade_notes_are_numbered_without_gaps_and_duplicates() {
    let changelog = fs::read_to_string(repository().join("CHANGELOG.md")).unwrap();
    let numbers = changelog.lines().filter_map(|line| {
        let (number, _) = line.split_once(". **")?;
        number.parse().ok()
    });
    let numbers: Vec<usize> = numbers.collect();
    assert!(numbers.len() > 50, "{numbers:?}");
    assert!(numbers.iter().copied().eq(1..=numbers.len()), "{numbers:?}");
}

#[test]
fn every_scenario_is_listed_once_in_order_and_names_a_test() {
    let page = page("features.md");
    let rows = numbered(&page, "## The scenarios");

    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
    for (number, cells) in rows {
        assert_eq!(cells.len(), 4, "{cells:?}");
        assert!(!named(cells[2]).is_empty(), "{number} names no test");
    }
}
