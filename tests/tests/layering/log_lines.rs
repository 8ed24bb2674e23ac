//! Checks the log lines of the controller. A tenant can repeat almost every event. Therefore, each log line that a
//! tenant can cause must use `cluster_line!`, which counts the line toward the namespace's log-line budget.

use std::collections::BTreeMap;
use std::fs;

use crate::{Workspace, rust_files};

/// The source files of the controller.
const SOURCES: [&str; 5] = [
    "controller/core/src",
    "controller/runtime/src",
    "controller/aws/src",
    "controller/tpm/src",
    "controller/manager/src",
];

/// The files with log lines that do not count toward a budget, the number of these lines, and the reason why no tenant
/// can repeat them.
const WITHOUT_BUDGET: [(&str, usize, &str); 21] = [
    ("controller/core/src/log_lines.rs", 2, "`cluster_line!`"),
    (
        "controller/runtime/src/logs.rs",
        1,
        "a decision, whose line is taken from the budget of its kind",
    ),
    (
        "controller/runtime/src/external_signer/client.rs",
        1,
        "a change of the operator's files for the external signer",
    ),
    (
        "controller/runtime/src/file_inventory.rs",
        2,
        "a file of the operator",
    ),
    (
        "controller/runtime/src/records/watch.rs",
        1,
        "every ten minutes for each namespace",
    ),
    (
        "controller/runtime/src/standalone.rs",
        12,
        "one cluster, of the operator",
    ),
    (
        "controller/runtime/src/standalone/service_addresses.rs",
        1,
        "one cluster, of the operator",
    ),
    (
        "controller/runtime/src/standalone/records.rs",
        2,
        "one cluster, of the operator",
    ),
    (
        "controller/runtime/src/standalone/findings.rs",
        1,
        "one cluster, of the operator",
    ),
    (
        "controller/runtime/src/management/leader.rs",
        5,
        "the Lease, in the operator's namespace",
    ),
    (
        "controller/runtime/src/management/cluster_registry.rs",
        1,
        "once at the end of a term",
    ),
    (
        "controller/runtime/src/capi/watch.rs",
        1,
        "the management API server begins to answer",
    ),
    (
        "controller/runtime/src/client/processor.rs",
        1,
        "once an hour for each namespace",
    ),
    (
        "controller/aws/src/tenancy/watch.rs",
        1,
        "identities have no namespace, and belong to the operator",
    ),
    (
        "controller/manager/src/aws.rs",
        2,
        "options, once at the start",
    ),
    (
        "controller/manager/src/files.rs",
        3,
        "limits of the process, once at the start",
    ),
    (
        "controller/manager/src/logging.rs",
        1,
        "panics, with a rate of their own",
    ),
    (
        "controller/manager/src/main.rs",
        1,
        "the end of the process",
    ),
    (
        "controller/manager/src/providers.rs",
        1,
        "an option, once at the start",
    ),
    ("controller/manager/src/run.rs", 1, "a signal"),
    (
        "controller/manager/src/run/management.rs",
        2,
        "once at the start and at the end",
    ),
];

/// The number of lines that the text logs, excluding tests.
fn lines(text: &str) -> usize {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let macros = ["error!", "warn!", "info!", "event!"];
    let starts = |line: &str| {
        let found = macros.iter().flat_map(|name| line.match_indices(name));
        let of_name = |(at, name): (usize, &str)| {
            let before = line[..at].chars().next_back();
            let after = line[at + name.len()..].chars().next();
            !before.is_some_and(|before| before.is_alphanumeric() || before == '_')
                && after.is_some_and(|after| "([{".contains(after))
        };
        found.filter(|found| of_name(*found)).count()
    };
    text.lines().filter(is_code).map(starts).sum()
}

#[test]
fn log_lines_that_tenants_can_cause_have_a_budget() {
    let workspace = Workspace::read();
    let mut found = BTreeMap::new();
    for file in SOURCES
        .iter()
        .flat_map(|folder| rust_files(&workspace.root.join(folder)))
    {
        let name = file.strip_prefix(&workspace.root).unwrap();
        let is_of_tests = name.ends_with("tests.rs")
            || name.iter().any(|part| part == "tests" || part == "testing");
        let count = lines(&fs::read_to_string(&file).unwrap());
        if count > 0 && !is_of_tests {
            found.insert(name.to_str().unwrap().to_owned(), count);
        }
    }
    let listed = WITHOUT_BUDGET.map(|(file, count, _)| (file.to_owned(), count));

    assert_eq!(
        found,
        BTreeMap::from(listed),
        "use cluster_line! of node-attestation-core, or state why no tenant repeats the line"
    );
}

#[test]
fn each_way_to_write_a_log_line_is_detected() {
    for line in [
        "tracing::warn!(\"a\");",
        "    error!(cluster, \"a\");",
        "tracing::event!(tracing::Level::INFO, \"a\")",
        "::tracing::info!{\"a\"}",
    ] {
        assert_eq!(lines(line), 1, "{line}");
    }
    for line in [
        "// tracing::warn!(\"a\");",
        "cluster_line!(&lines, WARN, \"a\");",
        "tracing::debug!(\"a\");",
        "my_warn!(\"a\");",
        "let warn = a;",
        "#[cfg(test)]\nmod tests {\n    tracing::warn!(\"a\");",
    ] {
        assert_eq!(lines(line), 0, "{line}");
    }
}
