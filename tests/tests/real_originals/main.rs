//! Tests that compare the project's AWS identities for clusters with the originals: the code of Cluster API Provider
//! AWS and of AWS Controllers for Kubernetes. A case is the input of one comparison. Both sides, the project and the
//! original, get the same objects, as a real API server stores them. STS records the calls of both sides.
//!
//! The generated cases are derived from a fixed seed, with which every rule occurs.
//! `KUBELET_AUTHENTICATOR_ORIGINALS_SEED` sets another seed, and each failure contains the seed.
//!
//! Each difference must be explained by a rule, which is a row of the table in docs/tenancy-cases.md. Otherwise, the
//! test fails.

mod ack;
mod capa;
mod judge;
mod objects;
mod random;
mod stored;

use std::collections::BTreeSet;
use std::fs;

/// The rows for which there is no case with both sides. For each case, the tests call the originals only once, for an
/// Instance in a namespace, and ignore the objects that the originals write.
const READ_ALONE: [&str; 6] = [
    "session for a role with a source role",
    "Secret rotation",
    "conditions after a failure",
    "an identity's Secret",
    "object without a namespace",
    "ACK: the resource that a selector matches",
];

/// The row of `a_source_loop_that_crashes_the_provider_is_an_error`.
const LOOP: &str = "source loop";

#[test]
fn each_documented_difference_is_tested_or_in_the_original_code() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tenancy-cases.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("## Differences from CAPA and ACK").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.filter_map(|row| Some(row.split_once(" | ")?.0));
    // The header, whose cell is empty, and the line of dashes below it are skipped.
    let rows: BTreeSet<&str> = rows
        .filter(|row| !row.starts_with(['|', '-']) && !row.is_empty())
        .collect();
    let capa = capa::ROWS.iter().map(|rule| rule.row());
    let ack = ack::ROWS.iter().map(|rule| rule.row());
    let rules = capa.chain(ack).chain(READ_ALONE).chain([LOOP]);
    assert_eq!(rows, rules.collect());
}
