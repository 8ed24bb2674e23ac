//! Finds comparisons of the wall clock with a time and a duration. The wall clock can be set, so elapsed time is
//! measured with a monotonic clock.

use std::collections::BTreeMap;
use std::fs;

use crate::{Workspace, rust_files};

/// The packages that run on the node or in the controller.
const FOLDERS: [&str; 5] = ["attestation", "controller", "providers", "resolver", "src"];

/// For each file, the permitted number of comparisons, and the reason for them.
const PERMITTED: [(&str, usize, &str); 12] = [
    (
        "controller/aws/src/tenancy/sessions/state.rs",
        1,
        "`Instant`",
    ),
    (
        "controller/core/src/ledger/garbage_collect.rs",
        3,
        "the end of a certificate; the other two are of times in records, which survive the process, and only decide \
         how long a Node is looked up",
    ),
    (
        "controller/core/src/ledger/rules/recovery.rs",
        1,
        "a generation is a time",
    ),
    (
        "controller/runtime/src/cluster_check/secrets.rs",
        1,
        "the end of a certificate",
    ),
    (
        "controller/runtime/src/hardening/tokens/secret.rs",
        1,
        "the end of a token, which the API server checks",
    ),
    (
        "controller/runtime/src/management/leader.rs",
        1,
        "`Instant`",
    ),
    (
        "controller/tpm/src/observations.rs",
        2,
        "the end of a certificate",
    ),
    (
        "providers/aws/src/credentials.rs",
        1,
        "the end of credentials",
    ),
    (
        "src/backoff.rs",
        1,
        "the time of an earlier run: no monotonic clock outlives a boot",
    ),
    ("src/doctor/local.rs", 1, "the start of a certificate"),
    (
        "src/pending.rs",
        1,
        "the time of an earlier run: no monotonic clock outlives a boot",
    ),
    (
        "src/rotation.rs",
        1,
        "the start and the end of a certificate",
    ),
];

const COMPARISONS: [&str; 4] = [" < ", " <= ", " > ", " >= "];
const ARITHMETIC: [&str; 4] = [" + ", " - ", "_add(", "_sub("];

/// Whether the line compares `now` with a time and a duration.
fn compares(line: &str) -> bool {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let has = |forms: &[&str]| forms.iter().any(|form| line.contains(form));
    !line.trim_start().starts_with("//")
        && line
            .split(|letter| !is_word(letter))
            .any(|word| word == "now")
        && has(&COMPARISONS)
        && has(&ARITHMETIC)
}

/// The number of comparisons in the production code of this file. Zero if the file does not use the wall clock.
fn comparisons(text: &str) -> usize {
    let program = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let has_times = ["SystemTime", "Timestamp"]
        .iter()
        .any(|of| program.contains(of));
    program
        .lines()
        .filter(|line| has_times && compares(line))
        .count()
}

#[test]
fn elapsed_time_is_not_measured_with_the_wall_clock() {
    let root = Workspace::read().root;
    let mut found = BTreeMap::new();
    for file in FOLDERS
        .iter()
        .flat_map(|folder| rust_files(&root.join(folder)))
    {
        let within = file.strip_prefix(&root).unwrap().to_str().unwrap();
        let is_test = ["/tests", "/testing", "/benches"];
        if is_test.iter().any(|part| within.contains(part)) {
            continue;
        }
        let count = comparisons(&fs::read_to_string(&file).unwrap());
        if count > 0 {
            found.insert(within.to_owned(), count);
        }
    }
    let permitted = PERMITTED.iter();
    let permitted = permitted.map(|(file, count, _)| ((*file).to_owned(), *count));
    assert_eq!(
        found,
        permitted.collect(),
        "use elapsed() of clock.rs, or list the file with the reason"
    );
}

#[test]
fn each_comparison_with_the_wall_clock_is_detected() {
    let of = |line: &str| comparisons(&format!("use std::time::SystemTime;\n{line}\n"));
    for bare in [
        "if now < at + TIMEOUT {",
        "    let recent = now <= opened.time + LOOKED_FOR;",
        "Self::Missing { next, .. } => next.saturating_add(wait) <= now,",
        "let is_over = now - since > TIMEOUT;",
        "end < now.saturating_add(TTL / 2)",
    ] {
        assert_eq!(of(bare), 1, "{bare}");
        assert_eq!(comparisons(bare), 0, "without a time: {bare}");
        assert_eq!(of(&format!("// {bare}")), 0, "{bare}");
        assert_eq!(
            of(&format!("#[cfg(test)]\nmod tests {{\n{bare}")),
            0,
            "{bare}"
        );
    }
    for other in [
        "if end < now {",
        "let end = now + LIFETIME;",
        "known + 1 < most",
        "if elapsed >= since + TIMEOUT {",
    ] {
        assert_eq!(of(other), 0, "{other}");
    }
}
