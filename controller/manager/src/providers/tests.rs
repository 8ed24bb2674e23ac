//! docs/reasons.md lists every reason of the core and of every provider.

use std::fmt::Write as _;

use node_attestation_core::refusal::{Deferral, Denial, Failure, Ignored, Reason};

use super::PROVIDERS;

const PREAMBLE: &str = "# Reasons

Why a certificate signing request got no certificate. The reason is on the request's condition, on the event and in the
log. This page is made from the code: `UPDATE=1 cargo test -p node-attestation-manager providers`.
";

/// The reasons to deny of the core, then those of each provider.
fn denials() -> Vec<Reason> {
    let of_providers = PROVIDERS.iter().flat_map(|provider| provider.denials);
    Denial::CATALOGUE
        .iter()
        .chain(of_providers)
        .copied()
        .collect()
}

/// The document that lists every reason.
fn markdown() -> String {
    let outcomes = [
        (
            "Denied",
            "A contradiction: somebody lies, or is misconfigured. Asking again changes nothing.",
            denials(),
        ),
        (
            "Failed",
            "Nobody's fault, but this request can never be issued. The node files a new one.",
            Failure::CATALOGUE.to_vec(),
        ),
        (
            "Pending",
            "An outage, or not yet. The request stays as it is, and is tried again.",
            Deferral::CATALOGUE.to_vec(),
        ),
        (
            "Ignored",
            "Not ours to answer. Nothing is written.",
            Ignored::CATALOGUE.to_vec(),
        ),
    ];
    let mut text = PREAMBLE.to_owned();
    for (title, about, reasons) in outcomes {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n## {title}\n\n{about}\n\n| reason | what the requester reads | what it means |\n| --- | --- | --- |\n"
        );
        for reason in reasons {
            let Reason { name, message, .. } = reason;
            let _ = writeln!(text, "| `{name}` | {message} | {} |", reason.meaning.trim());
        }
    }
    text
}

#[test]
fn the_document_lists_the_reasons_that_the_code_has() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reasons.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, markdown()).unwrap();
    }

    let document = std::fs::read_to_string(path).unwrap();

    assert!(
        document == markdown(),
        "docs/reasons.md is stale: run this test with UPDATE=1"
    );
}

#[test]
fn no_two_reasons_share_a_name() {
    let all = [
        &*denials(),
        Failure::CATALOGUE,
        Deferral::CATALOGUE,
        Ignored::CATALOGUE,
    ]
    .concat();
    let mut names: Vec<_> = all.iter().map(|reason| reason.name).collect();
    names.sort_unstable();
    names.dedup();

    assert_eq!(names.len(), all.len());
}
