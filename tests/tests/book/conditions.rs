//! Checks that the page of conditions and Events lists exactly the names in the code.

use std::collections::BTreeSet;
use std::fs;

use kubelet_authenticator_tests::docs::{page, quoted};
use kubelet_authenticator_tests::page::repository;

/// The source files with the reasons for Events, except Events about decisions on requests.
const EVENTS: [&str; 4] = [
    "core/src/ledger/grant_reason.rs",
    "runtime/src/management/enablement/step.rs",
    "runtime/src/management/supervisor/release.rs",
    "runtime/src/management/sweep_events.rs",
];

/// Words in these source files that are not a reason for an Event. A renewal does not write an Event.
const OTHERS: [&str; 6] = [
    "Cluster", "Enable", "Normal", "Release", "Renewed", "Warning",
];

/// The text of one of the controller's source files, without its tests.
fn code(path: &str) -> String {
    let source = fs::read_to_string(repository().join("controller").join(path)).unwrap();
    source.split("#[cfg(test)]").next().unwrap().to_owned()
}

/// The values of the constants in a source file.
fn constants(source: &str) -> BTreeSet<&str> {
    let lines = source.lines().map(str::trim_start);
    let constants = lines.filter(|line| line.starts_with("pub const "));
    constants
        .filter_map(|line| line.split('"').nth(1))
        .collect()
}

/// The names in the first cells of the tables between two strings on a page.
fn listed<'a>(page: &'a str, start: &str, end: &str) -> BTreeSet<&'a str> {
    let (_, section) = page.split_once(start).unwrap();
    let section = section.split(end).next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let first = rows.filter_map(|row| row.split(" | ").next());
    first.flat_map(quoted).collect()
}

#[test]
fn the_page_lists_each_condition_and_each_reason_of_a_condition() {
    let source = code("core/src/crd/conditions.rs");
    let (types, reasons) = source.split_once("pub mod reason").unwrap();
    let pages = ["conditions.md", "aws-reference.md", "tenancy-reference.md"].map(page);

    let start = "## Conditions of a KubeletAuthentication";
    assert_eq!(listed(&pages[0], start, "\n### "), constants(types));
    let documented: BTreeSet<&str> = pages.iter().flat_map(|page| quoted(page)).collect();
    let mut missing = constants(reasons);
    missing.retain(|reason| !documented.contains(reason));
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn the_page_lists_each_event_that_is_not_a_decision() {
    let is_name = |text: &&str| {
        let is_capital = text.starts_with(|first: char| first.is_ascii_uppercase());
        is_capital && text.bytes().all(|byte| byte.is_ascii_alphabetic()) && !OTHERS.contains(text)
    };
    let sources = EVENTS.map(code);
    let strings = sources
        .iter()
        .flat_map(|source| source.split('"').skip(1).step_by(2));
    let events: BTreeSet<&str> = strings.filter(is_name).collect();
    let pages = ["conditions.md", "enable-cluster.md", "reasons.md"].map(page);
    let [of_conditions, of_clusters, of_reasons] =
        [&pages[0], &pages[1], &pages[2]].map(|page| quoted(page).collect::<BTreeSet<&str>>());

    let mut missing = events.clone();
    missing.retain(|event| !of_conditions.contains(event) && !of_clusters.contains(event));
    assert_eq!(missing, BTreeSet::new());
    let mut unknown = listed(&pages[0], "## Events", "\n## ");
    unknown.retain(|event| !events.contains(event) && !of_reasons.contains(event));
    assert_eq!(unknown, BTreeSet::new());
}
