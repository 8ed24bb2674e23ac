//! The AWS identities of clusters, judged by the originals: the code of Cluster API Provider AWS and of AWS Controllers for
//! Kubernetes runs over the same objects, in the form that a real API server gives them, and STS tells what it was asked.
//!
//! The generated cases are those of a fixed seed, whose rules all occur; `KUBELET_AUTHENTICATOR_ORIGINALS_SEED` sets another,
//! and each failure says which it was.
//!
//! Each difference is explained by a rule that is a row of the table in docs/tenancy.md, or fails the test.

mod ack;
mod capa;
mod judge;
mod objects;
mod random;
mod stored;

use std::collections::BTreeSet;
use std::fs;

#[test]
fn each_rule_is_a_row_of_the_table_of_differences() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tenancy.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("## Differences from CAPA and ACK").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let rows: BTreeSet<&str> = rows
        .filter_map(|row| Some(row.split_once(" | ")?.0))
        .collect();
    for row in capa::ROWS
        .iter()
        .map(|rule| rule.row())
        .chain(ack::ROWS.iter().map(|rule| rule.row()))
    {
        assert!(rows.contains(row), "{row}");
    }
}
