//! The pages of the documentation, and the tests to which they refer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::page::repository;

/// The page in `docs` with this file name.
///
/// # Panics
///
/// Panics if the page cannot be read.
#[track_caller]
pub fn page(name: &str) -> String {
    let path = repository().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A Rust source file in the repository.
pub struct Source {
    /// The directory of the package that contains the file, relative to the repository.
    pub package: PathBuf,
    /// The path, relative to the repository.
    pub path: PathBuf,
    /// The text of the file.
    pub text: String,
}

/// All Rust source files in the repository.
///
/// # Panics
///
/// Panics if a source file cannot be read.
pub fn sources() -> Vec<Source> {
    let root = repository();
    let mut sources = Vec::new();
    let mut folders = vec![(root.clone(), PathBuf::new())];
    while let Some((folder, around)) = folders.pop() {
        let from_root = |path: &Path| path.strip_prefix(&root).unwrap().to_owned();
        let package = if folder.join("Cargo.toml").is_file() {
            from_root(&folder)
        } else {
            around
        };
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && name != ".git" {
                folders.push((path, package.clone()));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(Source {
                    package: package.clone(),
                    path: from_root(&path),
                    text: fs::read_to_string(path).unwrap(),
                });
            }
        }
    }
    sources
}

/// The names of all tests in the repository. If several tests have the same name, the name occurs once for each of
/// them.
///
/// # Panics
///
/// Panics if a source file cannot be read.
pub fn tests() -> Vec<String> {
    let sources = sources();
    let names = sources.iter().flat_map(|source| tests_in(&source.text));
    names.collect()
}

/// The names of the tests that only `make test-long` runs.
///
/// # Panics
///
/// Panics if a source file cannot be read.
pub fn long_tests() -> BTreeSet<String> {
    let is_long = |source: &&Source| {
        let suite = source.path.strip_prefix("tests/tests");
        suite.is_ok_and(|suite| suite.to_string_lossy().starts_with("long_"))
    };
    let sources = sources();
    let long = sources.iter().filter(is_long);
    long.flat_map(|source| tests_in(&source.text)).collect()
}

/// The functions with the attribute `test` from any test framework.
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

/// The quoted words that have the form of a test name.
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

/// The names on the page that do not belong to exactly one test, each with the number of its tests.
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
/// Panics if the page does not contain a section with this heading.
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

/// The functions and constants in the tests, keyed by name.
///
/// A test contains the words in its own body, in each function that it calls, and in each constant to which it refers.
/// The same rule applies to these functions and constants. Functions and constants are found by name, first in the same
/// file, and otherwise in all test files of the package. A word in a comment does not count. The check does not verify
/// that a word is compared with an outcome.
pub struct TestItems<'a>(BTreeMap<&'a str, Vec<Item<'a>>>);

/// A function or constant that a test uses.
struct Item<'a> {
    source: &'a Source,
    lines: Vec<&'a str>,
}

impl<'a> TestItems<'a> {
    /// Finds the tests in these source files.
    pub fn of(sources: &'a [Source]) -> Self {
        let mut items: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for source in sources {
            let lines: Vec<&str> = part_of_tests(source).lines().collect();
            for (at, line) in lines.iter().enumerate() {
                if let Some(name) = declared(line) {
                    let lines = item(&lines[at..]);
                    items.entry(name).or_default().push(Item { source, lines });
                }
            }
        }
        Self(items)
    }

    /// The reasons in the fifth cell of a row that do not occur in any test in the sixth cell, each with the row's
    /// name.
    pub fn lacking<'p>(&self, page: &'p str) -> Vec<(&'p str, &'p str)> {
        let mut lacking = Vec::new();
        for row in page.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let &[id, _, _, _, outcome, tests] = cells.as_slice() else {
                continue;
            };
            let words = self.words(&named(tests));
            let reasons = quoted(outcome).filter(|text| is_reason(text));
            let not = reasons.filter(|reason| !words.contains(reason));
            lacking.extend(not.map(|reason| (id, reason)));
        }
        lacking
    }

    /// The words that these tests contain.
    fn words(&self, tests: &[&str]) -> BTreeSet<&'a str> {
        let items = self.reached(tests, |_| true).into_iter();
        let lines = items.flat_map(|item| &item.lines);
        lines
            .flat_map(|line| words_of(line))
            .map(|(word, _)| word)
            .collect()
    }

    /// The code of this test, without comments. The code includes each function and constant that the test uses, if the
    /// item is in the test's file or in the file of [`crate::page`].
    ///
    /// Functions in other files are found only by name, and a common name would match many functions.
    pub fn code(&self, test: &str) -> String {
        let of_test = self.0.get(test).into_iter().flatten();
        let files: Vec<&Path> = of_test.map(|item| item.source.path.as_path()).collect();
        let is_near = |source: &Source| {
            files.contains(&source.path.as_path()) || source.path == Path::new("tests/src/page.rs")
        };
        let items = self.reached(&[test], is_near).into_iter();
        let lines = items.flat_map(|item| &item.lines);
        let code = lines.filter(|line| !line.trim_start().starts_with("//"));
        code.fold(String::new(), |code, line| code + line + "\n")
    }

    /// These tests, and the items that they use in source files that satisfy `counts`.
    fn reached(&self, tests: &[&str], counts: impl Fn(&Source) -> bool) -> Vec<&Item<'a>> {
        let mut reached = Vec::new();
        let mut seen = BTreeSet::new();
        let of_test = |test: &&str| self.0.get(*test).into_iter().flatten();
        let mut items: Vec<&Item<'a>> = tests.iter().flat_map(of_test).collect();
        while let Some(item) = items.pop() {
            if !seen.insert(item.lines.as_ptr()) {
                continue;
            }
            reached.push(item);
            for (word, after) in item.lines.iter().flat_map(|line| words_of(line)) {
                let is_call = after.starts_with('(') || after.starts_with("::<");
                if is_call || !word.contains(|c: char| c.is_ascii_lowercase()) {
                    let named = self.named_in(word, item.source).into_iter();
                    items.extend(named.filter(|item| counts(item.source)));
                }
            }
        }
        reached
    }

    /// The items with this name to which a test in `source` can refer.
    fn named_in(&self, name: &str, source: &Source) -> Vec<&Item<'a>> {
        let having = self.0.get(name).into_iter().flatten();
        let (here, elsewhere): (Vec<_>, Vec<_>) = having
            .filter(|item| item.source.package == source.package)
            .partition(|item| item.source.path == source.path);
        if here.is_empty() { elsewhere } else { here }
    }
}

/// Whether the text has the format of a reason: a single word in camel case.
pub fn is_reason(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_alphabetic())
}

/// The part of the source file that contains tests. If the file is in a directory `tests` or `testing`, or has one of
/// these names, this part is the complete text. Otherwise, it is the text after `mod tests {`.
fn part_of_tests(source: &Source) -> &str {
    let names = ["tests", "testing", "tests.rs", "testing.rs"];
    let mut parts = source.path.iter();
    if parts.any(|part| names.iter().any(|name| part == *name)) {
        return &source.text;
    }
    let inside = source.text.split_once("\nmod tests {\n");
    inside.map_or("", |(_, inside)| inside)
}

/// The name of the function or constant that the line declares.
fn declared(line: &str) -> Option<&str> {
    let mut code = line.trim_start();
    for qualifier in ["pub ", "pub(crate) ", "pub(super) ", "async "] {
        code = code.strip_prefix(qualifier).unwrap_or(code);
    }
    let kinds = ["const fn ", "fn ", "const ", "static "];
    let declared = kinds.iter().find_map(|kind| code.strip_prefix(kind))?;
    words_of(declared).first().map(|(name, _)| *name)
}

/// The lines of the item that starts in the first line, up to the line with the same indentation that ends the item.
fn item<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let own = indentation(lines[0]);
    let has_its_value_below = lines[0].ends_with('=');
    let last = lines.iter().position(|line| {
        indentation(line) == own && line.ends_with(['}', ';'])
            || has_its_value_below && line.ends_with(';')
    });
    lines[..=last.unwrap_or(0)].to_vec()
}

/// The words in a line of code, each with the text after it. A comment line does not contain any words.
fn words_of(line: &str) -> Vec<(&str, &str)> {
    let mut words = Vec::new();
    let mut rest = line;
    if line.trim_start().starts_with("//") {
        return words;
    }
    while let Some(start) = rest.find(is_of_word) {
        let from = &rest[start..];
        let end = from.find(|c| !is_of_word(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        words.push((word, after));
        rest = after;
    }
    words
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
