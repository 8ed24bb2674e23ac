//! Rules for assertions that something is absent, and for UIDs.

use std::fs;
use std::path::Path;

use crate::{Workspace, rust_files};

/// This file, and the helpers that require a later action as a sentinel.
const DOORS: [&str; 2] = ["src/absence.rs", "tests/layering/absences.rs"];

/// The functions that report whether a request has an answer.
const TOLD: [&str; 2] = ["is_answered", "is_issued"];

/// The assertions in the text that a request has no answer. White space is removed from the assertions.
fn bare_absences(text: &str) -> Vec<String> {
    let text: String = text.split_whitespace().collect();
    let denied = text.split("assert!(!").skip(1);
    let denied = denied.filter_map(|behind| {
        // Take the asserted condition, without the message.
        let condition = behind.split([',', ';']).next()?;
        let is_bare = TOLD.iter().any(|told| condition.contains(told));
        is_bare.then(|| format!("assert!(!{condition}"))
    });
    let equal = TOLD.iter().flat_map(|told| {
        let begin = format!("assert_eq!({told}(");
        let compared = text.split(&begin).skip(1);
        let false_ones = compared.filter_map(|behind| behind.split_once(")").map(|(_, rest)| rest));
        let begin = begin.clone();
        false_ones
            .filter(|rest| rest.starts_with(",false"))
            .map(move |_| begin.clone())
            .collect::<Vec<_>>()
    });
    denied.chain(equal).collect()
}

#[test]
fn every_assertion_of_absence_uses_a_sentinel() {
    let root = Workspace::read().root.join("tests");
    let mut bare = Vec::new();
    for file in ["src", "tests", "../tools"]
        .iter()
        .flat_map(|folder| rust_files(&root.join(folder)))
    {
        let within = file.strip_prefix(&root).unwrap();
        if DOORS.iter().any(|door| within == Path::new(door)) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let found = bare_absences(&text).into_iter();
        bare.extend(found.map(|absence| format!("{}: {absence}", within.display())));
    }
    assert_eq!(
        bare,
        Vec::<String>::new(),
        "use assert_unanswered or assert_refused"
    );
}

#[test]
fn each_assertion_of_absence_without_a_sentinel_is_detected() {
    for bare in [
        "assert!(!is_answered(&csr));",
        "assert!(!is_issued(&csr), \"{csr:#}\");",
        "assert!(\n    !is_issued(&BED.request(&name)),\n    \"why\"\n);",
        "assert!(!asked.iter().any(is_answered), \"{asked:#?}\");",
        "assert_eq!(is_issued(&csr), false);",
    ] {
        assert_eq!(bare_absences(bare).len(), 1, "{bare}");
    }
    for other in [
        "assert!(is_issued(&csr), \"{csr:#}\");",
        "assert!(!names.is_empty(), \"{}\", is_issued(&csr));",
        "assert!(!is_signed_by(&issued, &former));",
        "assert_eq!(is_issued(&csr), expected);",
    ] {
        assert_eq!(bare_absences(other), Vec::<String>::new(), "{other}");
    }
}

/// The file of the only test that sleeps: the test polls in a runtime, and pauses the time of this runtime afterwards.
const SLEEPS: &str = "tests/tests/controller_connections.rs";

/// Elapsed time does not prove an absence, regardless of the assertion that follows.
#[test]
fn a_test_does_not_sleep_before_an_assertion() {
    let workspace = Workspace::read();
    let call = ["sleep", "("].concat();
    let sleeping = workspace.offending("tests/tests", |line| line.contains(&call));
    assert_eq!(
        sleeping,
        [workspace.root.join(SLEEPS)],
        "poll for a later event"
    );
}

/// `Uids` uses a counter. If it returned a constant, two node identities would have the same UID, and a test could not
/// detect code that confuses them.
#[test]
fn the_uids_of_test_records_are_unique() {
    let workspace = Workspace::read();
    let constant = workspace.offending("controller", |line| line.contains("entropy = Box::new"));
    let door = workspace.root.join("controller/core/src/testing/ledger.rs");
    assert_eq!(constant, [door]);
}
