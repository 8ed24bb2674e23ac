//! Tests of the command `explain-reason`.

use kubelet_attestation::page_url;
use kubelet_authenticator_tests::docs::page;
use kubelet_authenticator_tests::node::NULL;
use serde_json::{Value, json};

use crate::nodes::{node, piped};

#[test]
fn a_reason_is_explained_with_meaning_remedy_message_and_page() {
    let explained = piped(NULL, &["explain-reason", "AnotherMachine"], "");

    let page = page("reasons.md");
    let row = page
        .lines()
        .find(|line| line.starts_with("| `AnotherMachine` |"));
    let cells: Vec<_> = row
        .unwrap()
        .split(" | ")
        .map(|cell| cell.trim_matches(['|', ' ']))
        .collect();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let url = page_url!("reasons.md#denied");
    let expected = format!(
        "Reason AnotherMachine Outcome denied Meaning {} What to do {} Message {} See {url}",
        cells[1], cells[2], cells[3]
    );
    assert_eq!(words(&explained), expected);
    let of_json = piped(
        NULL,
        &["explain-reason", "AnotherMachine", "-o", "json"],
        "",
    );
    let of_json: Value = serde_json::from_str(&of_json).unwrap();
    let expected = json!({
        "reason": "AnotherMachine", "outcome": "denied", "meaning": cells[1], "cure": cells[2],
        "message": cells[3], "link": url,
    });
    assert_eq!(of_json, expected);
}

#[test]
fn an_unknown_reason_exits_with_2_and_names_the_page() {
    let (server, node) = node();

    let run = node
        .command(&["explain-reason", "anotherMachine"])
        .failed(2);

    let expected = format!(
        "error: unknown reason \"anotherMachine\"\n\
         hint: check the spelling, with upper and lower case; for all reasons, see {}\n",
        page_url!("reasons.md")
    );
    assert_eq!(run.stderr, expected);
    assert_eq!(run.stdout, "");
    assert_eq!(server.connections(), 0);
    assert!(!node.state().exists());
}
