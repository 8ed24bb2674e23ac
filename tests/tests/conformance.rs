//! docs/conformance.md names tests; here they are looked for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// The name of every test in the repository.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
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

/// The functions that follow an attribute `test`, of whatever test framework.
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

/// What stands in the document between backticks and reads like a test's name.
fn named(document: &str) -> Vec<&str> {
    let code = document.split('`').skip(1).step_by(2);
    code.filter(|text| {
        text.matches('_').count() >= 2
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    })
    .collect()
}

#[test]
fn every_test_that_the_page_names_exists() {
    let document = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let tests = tests();
    let named = named(&document);

    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !tests.contains(**name))
        .collect();

    assert!(named.len() > 40, "{} tests are named", named.len());
    assert!(missing.is_empty(), "no such test: {missing:#?}");
}

#[test]
fn every_row_of_the_page_names_a_test_or_says_what_is_missing() {
    let document = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let rows = document.lines().filter(|line| {
        line.strip_prefix("| ")
            .is_some_and(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
            && line
                .split('|')
                .nth(1)
                .is_some_and(|id| id.trim().len() <= 4)
    });

    let bare: Vec<&str> = rows
        .filter(|row| named(row).is_empty() && !row.to_lowercase().contains("*not yet"))
        .collect();

    assert_eq!(bare, Vec::<&str>::new());
}

#[test]
fn every_row_of_trust_on_first_use_and_of_the_requester_has_a_test_of_its_number() {
    let tests = tests();
    let rows = ["a17", "a30", "a31"].into_iter().map(str::to_owned);
    let rows = rows.chain((1..=12).map(|row| format!("e{row:02}")));

    let bare: Vec<String> = rows
        .filter(|row| {
            !tests
                .iter()
                .any(|test| test.starts_with(&format!("{row}_")))
        })
        .collect();

    assert_eq!(bare, Vec::<String>::new());
}
