//! The pages of the documentation, and the tests that they name.

use std::collections::BTreeMap;
use std::fs;

use crate::page::repository;

/// The page of `docs` with this file name.
///
/// # Panics
///
/// If there is none.
#[track_caller]
pub fn page(name: &str) -> String {
    let path = repository().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of all tests in the repository; a name occurs as often as there are tests of it.
///
/// # Panics
///
/// If a source cannot be read.
pub fn tests() -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![repository()];
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

/// The texts between backticks in the document.
pub fn quoted(document: &str) -> impl Iterator<Item = &str> {
    document.split('`').skip(1).step_by(2)
}

/// The quoted texts that have the form of a test's name.
pub fn named(document: &str) -> Vec<&str> {
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
pub fn ambiguous(page: &str) -> BTreeMap<&str, usize> {
    let tests = tests();
    let having = |name| tests.iter().filter(|test| *test == name).count();
    let named = named(page).into_iter().map(|name| (name, having(name)));
    named.filter(|(_, having)| *having != 1).collect()
}

/// The numbered rows of the section with this heading, with their cells. The first cell is the number.
///
/// # Panics
///
/// If the page has no such section.
#[track_caller]
pub fn numbered<'a>(page: &'a str, heading: &str) -> Vec<(usize, Vec<&'a str>)> {
    let (_, section) = page
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("no section {heading}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|row| {
        let cells = row.trim_matches('|').split(" | ").map(str::trim);
        let cells: Vec<&str> = cells.collect();
        Some((cells.first()?.parse().ok()?, cells))
    });
    rows.collect()
}
