//! The tests that docs/conformance.md, docs/attacks.md and docs/tenancy.md name exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// The names of all tests in the repository; a name occurs as often as there are tests of it.
fn tests() -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && name != ".git" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                names.extend(tests_in(&fs::read_to_string(path).unwrap()));
            }
        }
    }
    names
}

/// The functions after an attribute `test` of any test framework.
fn tests_in(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut marked = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        }
        let function = line.strip_prefix("async fn ").or(line.strip_prefix("fn "));
        if let Some((name, _)) = function.and_then(|rest| rest.split_once('(')) {
            if marked {
                names.push(name.to_owned());
            }
            marked = false;
        }
    }
    names
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The texts between backticks in the document.
fn quoted(document: &str) -> impl Iterator<Item = &str> {
    document.split('`').skip(1).step_by(2)
}

/// The quoted texts that have the form of a test's name.
fn named(document: &str) -> Vec<&str> {
    quoted(document)
        .filter(|text| {
            text.matches('_').count() >= 2
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        })
        .collect()
}

/// The names in the page that do not belong to exactly one test, with their number of tests.
fn ambiguous(page: &str) -> BTreeMap<&str, usize> {
    let tests = tests();
    let having = |name| tests.iter().filter(|test| *test == name).count();
    let named = named(page).into_iter().map(|name| (name, having(name)));
    named.filter(|(_, having)| *having != 1).collect()
}

/// The rows of the page's tables whose first cell is a letter and a number, with that cell.
fn rows(page: &str) -> Vec<((char, usize), &str)> {
    let rows = page.lines().filter_map(|row| {
        let id = row.strip_prefix("| ")?.split(" |").next()?;
        let letter = id.chars().next().filter(char::is_ascii_uppercase)?;
        Some(((letter, id[1..].parse().ok()?), row))
    });
    rows.collect()
}

#[test]
fn every_test_that_a_page_names_exists_once() {
    for name in ["conformance.md", "attacks.md", "tenancy.md"] {
        let page = page(name);

        assert!(named(&page).len() > 40, "{name} names hardly any test");
        let ambiguous = ambiguous(&page);
        assert!(
            ambiguous.is_empty(),
            "{name}: tests of that name: {ambiguous:#?}"
        );
    }
}

#[test]
fn every_statement_names_a_test_or_says_what_is_missing() {
    let page = page("conformance.md");

    let bare: Vec<&str> = rows(&page)
        .into_iter()
        .map(|(_, row)| row)
        .filter(|row| named(row).is_empty() && !row.to_lowercase().contains("*not yet"))
        .collect();

    assert_eq!(bare, Vec::<&str>::new());
}

#[test]
fn every_row_of_the_test_plan_names_a_test() {
    let page = page("conformance.md");
    let (_, plan) = page.split_once("\n## The test plan\n").unwrap();
    let plan = plan.split("\n## ").next().unwrap();
    // The rows after the heading and the line below it.
    let rows: Vec<&str> = plan.lines().filter(|line| line.starts_with('|')).collect();
    let rows = &rows[2..];

    assert!(rows.len() > 10, "{rows:?}");
    let bare: Vec<_> = rows.iter().filter(|row| named(row).is_empty()).collect();
    assert_eq!(bare, Vec::<&&str>::new());
}

#[test]
fn every_case_of_tenancy_is_there_once_in_order_and_names_a_test() {
    let page = page("tenancy.md");
    let (_, cases) = page.split_once("\n## Cases and their tests\n").unwrap();
    let cases = cases.split("\n## ").next().unwrap();
    let rows: Vec<(usize, &str)> = cases
        .lines()
        .filter_map(|row| {
            let number = row.strip_prefix("| ")?.split(" |").next()?;
            Some((number.parse().ok()?, row))
        })
        .collect();

    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=79).collect::<Vec<_>>());
    for (number, row) in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
        assert!(!named(cells[3]).is_empty(), "{number} names no test");
    }
}

#[test]
fn every_attack_says_what_stops_it_and_names_a_test() {
    let page = page("attacks.md");

    for ((letter, number), row) in rows(&page) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
        assert!(
            !named(cells[5]).is_empty(),
            "{letter}{number} names no test"
        );
    }
}

#[test]
fn no_attack_is_left_out_or_there_twice() {
    let page = page("attacks.md");
    let rows = rows(&page);

    // A to E are a fixed list; the others may grow.
    for (letter, count) in [('A', 32), ('B', 18), ('C', 19), ('D', 24), ('E', 12)] {
        let of_table = rows.iter().filter(|((table, _), _)| *table == letter);
        assert_eq!(of_table.count(), count, "{letter}");
    }
    for letter in 'A'..='H' {
        let of_table = rows.iter().filter(|((table, _), _)| *table == letter);
        let numbers: Vec<usize> = of_table.map(|((_, number), _)| *number).collect();
        assert!(
            numbers.iter().copied().eq(1..=numbers.len()),
            "{letter}: {numbers:?}"
        );
        assert!(!numbers.is_empty(), "{letter}");
    }
}

#[test]
fn every_reason_of_an_attack_is_one_that_another_page_explains() {
    let pages = ["reasons.md", "controller.md", "cluster-api.md"].map(page);
    let known: BTreeSet<&str> = pages.iter().flat_map(|page| quoted(page)).collect();
    let attacks = page("attacks.md");

    let unknown: Vec<&str> = quoted(&attacks)
        .filter(|word| {
            word.starts_with(|c: char| c.is_ascii_uppercase())
                && word.bytes().all(|b| b.is_ascii_alphabetic())
                && !known.contains(word)
        })
        .collect();

    assert_eq!(unknown, Vec::<&str>::new());
}

#[test]
fn no_test_is_named_after_a_row() {
    let is_row = |name: &&String| {
        let row = name.split('_').next().unwrap().as_bytes();
        matches!(row, [b'a'..=b'h', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit())
    };

    assert_eq!(tests().iter().find(is_row), None);
}
